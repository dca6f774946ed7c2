"""What is done to a Fisher before it becomes a well: a floor is added, and the trace is fixed."""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ewc.sharding import elementwise, mean, total


def shaped(
    fisher: Mapping[str, Tensor], *, floor: float = 0.0, normalize: float | None = None
) -> dict[str, Tensor]:
    """Return F + floor · mean(F), the mean over each parameter, scaled to the trace `normalize`.

    The floor protects weights that no sample used. They may belong to a dead unit, for example,
    which the next task could bring back to life.

    Args:
        fisher: one tensor per parameter, by name.
        floor: fraction of each parameter's mean that is added to all of its entries.
        normalize: the trace of the result; None leaves it as it is.
    """
    raised = {
        name: elementwise(partial(torch.add, other=floor * mean(tensor)), tensor)
        for name, tensor in fisher.items()
    }
    if normalize is None or (found := trace(raised)) == 0:
        return raised
    scale = partial(torch.mul, other=normalize / found)
    return {name: elementwise(scale, tensor) for name, tensor in raised.items()}


def check_shaping(floor: float, normalize: float | None) -> None:
    """Raise if `shaped` could not use these values."""
    if not (math.isfinite(floor) and floor >= 0):
        raise ValueError(f"expected floor to be finite and >= 0, got {floor}")
    if normalize is not None and not (math.isfinite(normalize) and normalize > 0):
        raise ValueError(f"expected normalize to be a finite trace > 0, got {normalize}")


def trace(fisher: Mapping[str, Tensor]) -> float:
    """Return the sum of all entries."""
    return sum(float(total(tensor)) for tensor in fisher.values())
