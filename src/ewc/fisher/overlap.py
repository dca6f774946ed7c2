"""How much two tasks rely on the same weights: the overlap of their Fisher diagonals.

With `F̂` scaled to unit trace, `d²(F̂₁, F̂₂) = ½ ‖F̂₁^½ − F̂₂^½‖²` and the overlap is
`1 − d² = Σ_i √(F̂₁ᵢ F̂₂ᵢ)` (the paper's appendix).
"""

import math
from collections.abc import Mapping
from functools import partial
from math import sqrt

import torch
from torch import Tensor

from ewc.distributed.shards import all_true, any_nonzero, elementwise, mean, total


def fisher_overlap(f1: Mapping[str, Tensor], f2: Mapping[str, Tensor]) -> float:
    """Return the overlap 1 − d² of two Fishers of one model.

    It is 0 if the tasks use different weights, and 1 if their Fishers are proportional.

    Example:
        >>> import torch, ewc
        >>> ewc.fisher_overlap({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([4.0, 0.0])})
        1.0
    """
    _check_same(f1, f2)
    shared = norm1 = norm2 = 0.0
    for name, first in f1.items():
        first, second = first.double(), f2[name].double().to(first.device)
        shared += float(total(first.sqrt() * second.sqrt()))
        norm1 += float(total(first))
        norm2 += float(total(second))
    if norm1 == 0 or norm2 == 0:
        raise ValueError("the overlap of a Fisher that is zero everywhere is not defined")
    return min(1.0, shared / (sqrt(norm1) * sqrt(norm2)))


def fisher_overlap_by_layer(f1: Mapping[str, Tensor], f2: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the overlap within each layer, each layer scaled to unit trace by itself.

    A layer is a parameter name without its last part. Layers that one of the tasks does not use are
    left out.

    Example:
        >>> import torch, ewc
        >>> f1 = {"body.weight": torch.ones(4), "head.weight": torch.tensor([1.0, 0.0])}
        >>> f2 = {"body.weight": torch.ones(4), "head.weight": torch.tensor([0.0, 1.0])}
        >>> ewc.fisher_overlap_by_layer(f1, f2)
        {'body': 1.0, 'head': 0.0}
    """
    _check_same(f1, f2)
    layers: dict[str, list[str]] = {}
    for name in f1:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    overlaps = {}
    for layer, names in layers.items():
        first, second = {name: f1[name] for name in names}, {name: f2[name] for name in names}
        if all(any(any_nonzero(f) for f in part.values()) for part in (first, second)):
            overlaps[layer] = fisher_overlap(first, second)
    return overlaps


def _check_same(f1: Mapping[str, Tensor], f2: Mapping[str, Tensor]) -> None:
    if not f1 or f1.keys() != f2.keys():
        odd = sorted(f1.keys() ^ f2.keys())
        raise ValueError(
            "expected two Fishers of the same parameters; "
            f"only one of them has {odd or 'any at all'}"
        )
    for name in f1:
        if f1[name].shape != f2[name].shape:
            raise ValueError(
                f"{name!r} has shape {tuple(f1[name].shape)} in one Fisher "
                f"and {tuple(f2[name].shape)} in the other"
            )
        for fisher in (f1[name], f2[name]):
            if not all_true(torch.isfinite(fisher) & (fisher >= 0)):
                raise ValueError(
                    f"{name!r} has a negative, NaN or infinite entry: "
                    "a Fisher diagonal is finite and not negative"
                )


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
    if normalize is None or (present := trace(raised)) == 0:
        return raised
    scale = partial(torch.mul, other=normalize / present)
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
