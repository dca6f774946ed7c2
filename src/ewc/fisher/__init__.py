"""How much each weight matters to a task: the Fisher information, and its overlaps.

- `diagonal`, `kronecker`: `fisher_diagonal` and `fisher_kronecker`, by `passes` over the data.
- `batches`, `likelihood`, `model`: what a loader yields, what the outputs mean as gradients at the
  outputs, and a model that is left as it was.
- `per_sample`: sums of squared per-sample gradients, read from the autograd graph.
- `sharded`: the same for a model that FSDP2 shards.
- `overlap`: how much two tasks rely on the same weights.
"""

from ewc.fisher.diagonal import fisher_diagonal
from ewc.fisher.kronecker import KroneckerFactors, KroneckerFisher, fisher_kronecker
from ewc.fisher.overlap import fisher_overlap, fisher_overlap_by_layer

__all__ = [
    "KroneckerFactors",
    "KroneckerFisher",
    "fisher_diagonal",
    "fisher_kronecker",
    "fisher_overlap",
    "fisher_overlap_by_layer",
]
