"""Memory aware synapses (Aljundi et al. 2018, arXiv 1711.09601): how much the output depends on θ.

    Ω_i = 1/N Σ_n | ∂‖f(x_n)‖² / ∂θ_i |

The absolute value is taken of each sample's own gradient. That of a batch's gradient, which is
often taken instead, is smaller, because gradients of different signs cancel, and it depends on the
batch size.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ewc.fisher.absolute_pass import AbsolutePass
from ewc.fisher.batches import read_batches
from ewc.fisher.datasets import Collate, as_batches
from ewc.fisher.diagonal import add_batches, check_batch_norms, check_parameters
from ewc.fisher.preserve import preserved
from ewc.parameters import ParameterSelection, select_parameters, unwrap
from ewc.processes import ProcessGroup, find_processes
from ewc.sharding import is_sharded


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
        process_group: the processes that share the model, see `fisher_diagonal`.

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
    selected = select_parameters(model, parameters)
    check_parameters(selected)
    check_batch_norms(model)
    processes = find_processes(model, process_group)
    model = unwrap(model)
    if any(map(is_sharded, model.parameters())):
        raise ValueError(
            "memory_aware_synapses cannot differentiate a model in shards: compute it before "
            "fully_shard, or use ewc.fisher_diagonal"
        )
    with preserved(model) as random_state, processes.failing_together():
        processes.check_same_weights(selected)
        absolutes = AbsolutePass(model, selected)
        read = read_batches(as_batches(batches, collate), model)
        add_batches(absolutes, read, processes.share(max_samples), random_state)
    return absolutes.sums.mean(processes, max_samples, "mean")
