"""The tensor on its way through a random model, and what an operation on it is."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

Dims = tuple[tuple[str, ...], ...]


@dataclass
class State:
    """A tensor on its way: what its dimensions hold, but for the last, which has the features."""

    x: Tensor
    dims: Dims
    sizes: dict[str, int]
    keep: Tensor  # (samples, positions): true where there is a token
    inputs: Tensor

    def shaped(self, x: Tensor, dims: Dims) -> "State":
        return replace(self, x=x, dims=dims)

    def index(self, axis: str) -> int | None:
        """The dimension that holds this axis and nothing else."""
        return self.dims.index((axis,)) if (axis,) in self.dims else None

    def unfolded(self, *order: str) -> Tensor:
        """The tensor with one dimension per axis, in this order first."""
        axes = [axis for dim in self.dims for axis in dim]
        x = self.x.reshape(*(self.sizes[axis] for axis in axes), self.x.shape[-1])
        rest = [axis for axis in axes if axis not in order]
        return x.permute(*(axes.index(axis) for axis in [*order, *rest]), len(axes))


Run = Callable[[nn.Module, State], State]
# Makes an operation for a number of features: its parameters, what it does, and the features after.
Make = Callable[[random.Random, int], tuple[nn.Module, Run, int]]
