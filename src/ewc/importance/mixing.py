"""Whether the output for a sample depends on the other samples of its batch."""

from torch import Tensor, nn

from ewc.importance.batches import Batch
from ewc.importance.graph import Graph

MASK = 1e4  # entries at least this large, with or without other samples, may be masks


def mixes(model: nn.Module, batch: Batch, output: Tensor, graph: Graph, samples: list[int]) -> bool:
    """Whether some of the samples have another output alone than in their batch."""
    rounding = graph.rounding
    return not all(
        same_output(batch.pick([n]).outputs(model)[0], output[n], rounding) for n in samples
    )


def same_output(first: Tensor, second: Tensor, rounding: float) -> bool:
    """Equal up to the rounding of another batch size, where `rounding` is that of one operation.

    Rounding is relative to the largest entry. Masks are left out of that: beside a logit of -1e9
    any difference of the others would pass.
    """
    if first.shape != second.shape:
        return False
    first, second = first.detach(), second.detach()
    difference, size = (first - second).abs(), first.abs()
    masks = (size >= MASK) & (difference <= 4 * rounding * size)
    return bool((difference <= rounding**0.5 * size.masked_fill(masks, 0).max())[~masks].all())
