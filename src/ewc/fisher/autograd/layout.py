"""Where the samples of a batch are in the tensors of an operation."""

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from torch import Tensor

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The samples are the middle factor of dimension `dim`, unflattened to (outer, samples, inner).

    `Layout(0, 1, 1)` is the usual batch dimension, `Layout(0, 1, T)` a batch of sequences flattened
    to rows, `Layout(0, 2, 1)` two batches one after the other (`torch.cat([a, b])`).
    """

    dim: int
    outer: int
    inner: int

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """`tensor` with the samples moved to a new first dimension; what else was in `dim` stays
        there.
        """
        if self.outer == 1:
            split: Tensor = tensor.unflatten(self.dim, (batch, self.inner))
            return split.movedim(self.dim, 0) if self.dim else split
        split = tensor.unflatten(self.dim, (self.outer, batch, self.inner)).movedim(self.dim + 1, 0)
        return split.flatten(self.dim + 1, self.dim + 2)

    def stride(self, shape: Shape) -> int:
        """How many elements in a row (of a contiguous tensor) belong to the same sample."""
        return self.inner * prod(shape[self.dim + 1 :])


def at_stride(stride: int, shape: Shape, batch: int) -> Layout | None:
    """The layout of `shape` in which element number i belongs to sample (i // stride) % batch, if
    one dimension holds the samples.
    """
    after = 1
    for dim in range(len(shape) - 1, -1, -1):
        inner, odd = divmod(stride, after)
        if odd or inner == 0:
            return None
        if shape[dim] % (inner * batch) == 0:
            return Layout(dim, shape[dim] // (inner * batch), inner)
        after *= shape[dim]
    return None


def possible_layouts(shape: Shape, batch: int) -> list[Layout]:
    """Every layout that the sizes allow, the plainest of each dimension first."""
    return [
        Layout(dim, outer, size // batch // outer)
        for dim, size in enumerate(shape)
        if size and size % batch == 0
        for outer in range(1, size // batch + 1)
        if size // batch % outer == 0
    ]
