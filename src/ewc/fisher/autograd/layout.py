"""Where the samples of a batch are in the tensors of an operation."""

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from torch import Tensor

Sizes: TypeAlias = tuple[int, ...]  # of a tensor's dimensions


@dataclass(frozen=True)
class SampleLayout:
    """Dimension `dim`, unflattened to (outer, samples, inner), has the samples in the middle.

    `SampleLayout(0, 1, 1)` is the usual batch dimension, `SampleLayout(0, 1, T)` a batch of
    sequences flattened to rows, and `SampleLayout(0, 2, 1)` two batches one after the other
    (`torch.cat([a, b])`).
    """

    dim: int
    outer: int
    inner: int

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """Return the tensor with its samples in a new first dimension.

        What else was in `dim` stays there. `batch` is the number of samples.
        """
        if self.outer == 1:
            split: Tensor = tensor.unflatten(self.dim, (batch, self.inner))
            return split.movedim(self.dim, 0) if self.dim else split
        split = tensor.unflatten(self.dim, (self.outer, batch, self.inner)).movedim(self.dim + 1, 0)
        return split.flatten(self.dim + 1, self.dim + 2)

    def stride(self, shape: Sizes) -> int:
        """Return how many consecutive elements of a contiguous tensor belong to one sample."""
        return self.inner * prod(shape[self.dim + 1 :])


def at_stride(stride: int, shape: Sizes, batch: int) -> SampleLayout | None:
    """Return the layout in which element number i belongs to sample (i // stride) % batch.

    None if no single dimension holds the samples.

    Args:
        stride: number of consecutive elements that belong to one sample.
        shape: the shape of the tensor.
        batch: number of samples.
    """
    after = 1
    for dim in range(len(shape) - 1, -1, -1):
        inner, odd = divmod(stride, after)
        if odd or inner == 0:
            return None
        if shape[dim] % (inner * batch) == 0:
            return SampleLayout(dim, shape[dim] // (inner * batch), inner)
        after *= shape[dim]
    return None


def possible_layouts(shape: Sizes, batch: int) -> list[SampleLayout]:
    """Return every layout that the sizes allow, the simplest of each dimension first."""
    return [
        SampleLayout(dim, outer, size // batch // outer)
        for dim, size in enumerate(shape)
        if size and size % batch == 0
        for outer in range(1, size // batch + 1)
        if size // batch % outer == 0
    ]
