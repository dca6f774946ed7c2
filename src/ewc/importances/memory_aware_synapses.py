"""Memory aware synapses (Aljundi et al. 2018, arXiv 1711.09601): how much the output depends on θ.

    Ω_i = 1/N Σ_n | ∂‖f(x_n)‖² / ∂θ_i |

The absolute value is taken of each sample's own gradient. That of a batch's gradient, which is
often taken instead, is smaller, because gradients of different signs cancel, and it depends on the
batch size.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from ewc.distributed.ranks import ProcessGroup, find_ranks
from ewc.distributed.shards import is_sharded, reshard
from ewc.fisher.batches import Collate, FisherBatch, as_batches, read_batches
from ewc.fisher.diagonal import add_batches, check_batch_norms, check_parameters
from ewc.fisher.likelihood import counted_positions
from ewc.fisher.model import preserved
from ewc.fisher.passes import FisherPass
from ewc.fisher.per_sample.graph import Graph
from ewc.fisher.per_sample.plan import Plan
from ewc.fisher.per_sample.rules import add_sum_of_absolutes
from ewc.fisher.per_sample.sums import BatchSquares
from ewc.parameters import ParameterSelection, select_parameters, unwrap, widened


class BatchAbsolutes(BatchSquares):
    """Adds Σ_n |∂ℓ_n/∂θ| of one batch to the totals, for one cotangent."""

    _add_sum = staticmethod(add_sum_of_absolutes)

    def add(self, grads: dict[int, Tensor]) -> None:
        """Add the absolute gradients, given the gradients at the operations."""
        for node, total, rule in self._single_use:
            rule.add_absolutes(total, grads[node])
        for name in self.plan.multi_use:
            self._add_multi_use(self.totals[name], self.uses[name], grads)

    def finish(self) -> None:
        """Nothing is put off: there is one cotangent."""


class AbsolutePass(FisherPass):
    """Sums of absolute per-sample gradients of ‖f(x)‖², batch by batch.

    Args:
        model: the model, in eval mode.
        parameters: the parameters to differentiate by, by name.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        # No label is used, except that positions labeled -100 do not count.
        super().__init__(model, parameters, "empirical", "categorical", None)

    def _make_sums(self, graph: Graph, plan: Plan, batch: FisherBatch) -> BatchSquares:
        return BatchAbsolutes(self.sums.totals, graph, plan, batch.size)

    def _cotangents(self, batch: FisherBatch, output: Tensor) -> Iterable[Tensor]:
        cotangent = 2 * widened(output.detach())
        counted = counted_positions(output, batch.targets, batch.mask, "categorical")
        return [cotangent if counted is None else cotangent * counted.unsqueeze(-1)]

    def _add_sample(self, totals: dict[str, Tensor], output: Tensor, vectors: list[Tensor]) -> None:
        for grads in self._run.sample_gradients(output, list(totals), vectors):
            for name, grad in grads.items():
                totals[name].add_(grad.abs())


def memory_aware_synapses(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    max_samples: int | None = None,
    parameters: ParameterSelection = None,
    collate: Collate | None = None,
    process_group: ProcessGroup = None,
) -> dict[str, Tensor]:
    """Return the mean absolute gradient of the squared norm of the output, one value per weight.

    It needs no labels. The mean is over samples; for outputs with more than two dimensions, such as
    sequences of tokens, the norm is that of all positions together, and the sum is divided by the
    number of positions. Positions that are masked, or labeled -100, do not count.

    It grows with the square of the outputs and is no curvature, so a good strength is not that of a
    Fisher. The softmax does not change when a number is added to all logits, but this norm does.

    Args:
        model: any module. It is run in eval mode and left exactly as it was.
        batches: the data, as for `fisher_diagonal`. Targets are not used.
        max_samples: stop after this many samples.
        parameters: which parameters, as for `EWC`.
        collate: makes batches if `batches` is a dataset, see `fisher_diagonal`.
        process_group: the ranks that share the model, see `fisher_diagonal`.

    Returns:
        One tensor per parameter, by name, at least float32.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Linear(4, 3)
        >>> memory = ewc.EWC(model, strength=1.0)
        >>> importance = ewc.importances.memory_aware_synapses(model, [torch.randn(8, 4)])
        >>> memory.anchor(importance, task="A")
    """
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, not {max_samples}")
    reshard(unwrap(model))
    selected = select_parameters(model, parameters)
    check_parameters(selected)
    check_batch_norms(model)
    ranks = find_ranks(model, process_group)
    model = unwrap(model)
    if any(map(is_sharded, model.parameters())):
        raise ValueError(
            "memory_aware_synapses cannot differentiate a model in shards: compute it before "
            "fully_shard, or use ewc.fisher_diagonal"
        )
    with preserved(model) as random_state, ranks.failing_together():
        ranks.check_same_weights(selected)
        absolutes = AbsolutePass(model, selected)
        read = read_batches(as_batches(batches, collate), model)
        add_batches(absolutes, read, ranks.share(max_samples), random_state)
    return absolutes.sums.mean(ranks, max_samples, "mean")
