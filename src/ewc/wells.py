"""Quadratic wells: what a task leaves behind, and how wells add up to one.

A sum of quadratics is a quadratic: whatever the number of tasks, two tensors per parameter and one
number hold it. Instead of ΣF and ΣFθ* the pair (precision, anchor) = (ΣF, ΣFθ*/ΣF) is kept, and
instead of ΣFθ*² what is left at the bottom of the well, so that nothing cancels in float32. The
mean of several anchors is rounded; where they lie so close together that this would show, a third
tensor keeps the remainder.
Wells are never changed in place: a new one takes the place of the old.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Well:
    """E(θ) = Σ_i precision_i (θ_i − anchor_i − remainder_i)² + bottom, by parameter name.

    The remainder is about one rounding of the anchor; a parameter that is not in it has none.
    """

    precision: Mapping[str, Tensor] = field(default_factory=dict)
    anchor: Mapping[str, Tensor] = field(default_factory=dict)
    bottom: float = 0.0
    remainder: Mapping[str, Tensor] = field(default_factory=dict)

    def distance(self, name: str, parameter: Tensor) -> Tensor:
        """Return θ − anchor − remainder of one parameter, in the type of the anchor."""
        distance = parameter.to(self.anchor[name].dtype) - self.anchor[name]
        return distance.sub_(self.remainder[name]) if name in self.remainder else distance

    def map(self, change: Callable[[str, Tensor], Tensor]) -> "Well":
        """Return the well with each of its tensors replaced by `change(name, tensor)`."""
        return Well(
            {name: change(name, tensor) for name, tensor in self.precision.items()},
            {name: change(name, tensor) for name, tensor in self.anchor.items()},
            self.bottom,
            {name: change(name, tensor) for name, tensor in self.remainder.items()},
        )

    def to(self, device: torch.device) -> "Well":
        """Return the well with its tensors on `device`."""
        return self.map(lambda name, tensor: tensor.to(device))


@dataclass(frozen=True)
class Holdings:
    """The wells of all tasks; each method returns new ones, so that a failure changes nothing.

    `parameters` are those of the model, which the wells are made to fit.
    """

    decay: float
    tasks: tuple[str, ...] = ()
    total: Well = field(default_factory=Well)  # of all tasks, merged
    kept: Mapping[str, Well] = field(default_factory=dict)  # each task's own, where it is kept
    aside: tuple[str, ...] = ()  # tasks left out for a while
    active: Well = field(default_factory=Well)  # what pulls: the total, but for those left out

    def hold(
        self, task: str, well: Well, kept: Well | None, parameters: Mapping[str, Tensor]
    ) -> "Holdings":
        """Add the well of a task, the newest; one that the task had before is dropped."""
        others = self.forget(task, parameters) if task in self.tasks else self
        return replace(
            self,
            tasks=(*others.tasks, task),
            total=merged([fit(others.total, parameters), well], self.decay),
            kept={} if kept is None else {**others.kept, task: kept},
        ).activate(parameters)

    def forget(self, task: str, parameters: Mapping[str, Tensor]) -> "Holdings":
        """Drop a task: what is left is merged anew from the kept wells."""
        kept = {name: well for name, well in self.kept.items() if name != task}
        total = merged((fit(well, parameters) for well in kept.values()), self.decay)
        return replace(self, tasks=tuple(kept), total=total, kept=kept).activate(parameters)

    def activate(self, parameters: Mapping[str, Tensor]) -> "Holdings":
        """Let all tasks pull but those set aside."""
        if not self.aside:
            return replace(self, active=self.total)
        pulling = (well for name, well in self.kept.items() if name not in self.aside)
        active = merged((fit(well, parameters) for well in pulling), self.decay)
        return replace(self, active=active)

    def fit(self, parameters: Mapping[str, Tensor]) -> "Holdings":
        """Follow the model to other devices and larger shapes; the same holdings if it stayed."""
        active = fit(self.active, parameters)
        if active is self.active:
            return self
        return replace(self, active=active, total=self.total if self.aside else active)


class Held(NamedTuple):
    """What pulls at this moment: the model's parameters by name, their well, and λ."""

    parameters: Mapping[str, nn.Parameter]
    well: Well
    strength: float

    def penalty(self) -> Tensor:
        """Return (λ / 2) times the energy of the well."""
        return self.strength / 2 * energy(self.well, self.parameters)


def joined(several: Sequence[Held]) -> Held:
    """Return what several memories hold as one well: Σ λP around the mean of their anchors.

    Parameters are matched by identity, as the memories may know them by different names.
    """
    strength = max(held.strength for held in several)
    names: dict[int, str] = {}
    parameters: dict[str, nn.Parameter] = {}
    total = Well()
    for number, held in enumerate(several):
        factor, well = held.strength / strength, held.well  # at most 1: no precision overflows
        new = {
            name: names.setdefault(id(held.parameters[name]), f"{number}.{name}")
            for name in well.precision
        }
        parameters |= {new[name]: held.parameters[name] for name in new}
        scaled = Well(
            {new[name]: factor * tensor for name, tensor in well.precision.items()},
            {new[name]: tensor for name, tensor in well.anchor.items()},
            factor * well.bottom,
            {new[name]: tensor for name, tensor in well.remainder.items()},
        )
        total = add(total, scaled)
    return Held(parameters, total, strength)


def energy(well: Well, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return E(θ) of the well, differentiable in the parameters."""
    terms = [
        (well.precision[name] * well.distance(name, p).square()).sum()
        for name, p in parameters.items()
        if name in well.precision
    ]
    return sum((term.to(terms[0].device) for term in terms), torch.zeros(())) + well.bottom


def merged(wells: Iterable[Well], decay: float) -> Well:
    """Return one well for many, oldest first: their sum, or with `decay` < 1 online EWC."""
    if decay == 1:
        return reduce(add, wells, Well())
    return reduce(lambda old, new: succeed(old, new, decay), wells, Well())


def add(a: Well, b: Well) -> Well:
    """Return the well whose energy is that of `a` plus that of `b`, everywhere.

    P = P_a + P_b,  m = (P_a m_a + P_b m_b) / P,
    bottom = bottom_a + bottom_b + Σ (P_a P_b / P) (m_a − m_b)²
    """
    precision = {**a.precision, **b.precision}
    anchor = {**a.anchor, **b.anchor}
    remainder = {**a.remainder, **b.remainder}
    bottoms = [a.bottom, b.bottom]
    for name in a.precision.keys() & b.precision.keys():
        precision[name] = a.precision[name] + b.precision[name]
        share = (b.precision[name] / precision[name]).nan_to_num(nan=0.0)  # 0/0: held by neither
        anchor[name] = torch.lerp(a.anchor[name], b.anchor[name], share)
        # The mean once more, measured from its rounded value: differences of neighbours are exact.
        from_a, from_b = (well.distance(name, anchor[name]).neg_() for well in (a, b))
        remainder[name] = torch.lerp(from_a, from_b, share)
        apart = from_a - from_b
        bottoms.append(float((a.precision[name] * share * apart.square()).sum()))
        if _energy_error(precision[name], remainder[name], bottoms[-1]) < 8:
            del remainder[name]
    return Well(precision, anchor, math.fsum(bottoms), remainder)  # the same in whatever order


def _energy_error(precision: Tensor, remainder: Tensor, bottom: float) -> float:
    """Return by how many roundings of its value E could be off without the remainder r.

    |ΔE| / E <= 2 Σ P |r| |θ − m| / (Σ P (θ − m)² + bottom) <= √(Σ P r² / bottom), for every θ.
    """
    lost = float((precision * remainder.square()).sum())
    if lost == 0:
        return 0.0
    return math.sqrt(lost / bottom) / torch.finfo(remainder.dtype).eps if bottom > 0 else math.inf


def succeed(old: Well, new: Well, decay: float) -> Well:
    """Return the well of online EWC (Schwarz et al. 2018): P = decay P_old + P_new around m_new.

    Parameters that only `old` holds keep their anchor.
    """
    precision = {name: decay * tensor for name, tensor in old.precision.items()}
    for name, tensor in new.precision.items():
        precision[name] = precision[name] + tensor if name in precision else tensor
    remainder = {name: tensor for name, tensor in old.remainder.items() if name not in new.anchor}
    return Well(precision, {**old.anchor, **new.anchor}, remainder={**remainder, **new.remainder})


def fit(well: Well, parameters: Mapping[str, Tensor]) -> Well:
    """Return the well in the shape, place and (at least float32) type of the parameters it holds.

    A parameter that gained rows or columns is held on its old part, the leading block, and free on
    the rest. One that shrank, changed rank or vanished raises. A well that fits is returned as is.
    """
    # called at every step: the anchor is made with the precision, so one of them tells
    if all(_fits(tensor, name, parameters) for name, tensor in well.precision.items()):
        return well
    return well.map(lambda name, tensor: _fitted(tensor, name, parameters))


def check_precision(
    precision: Mapping[str, Tensor], parameters: Mapping[str, Tensor], what: str = "precision"
) -> None:
    """Raise unless `precision` has a finite tensor >= 0 for each parameter, and for no other."""
    for name, parameter in parameters.items():
        if name not in precision:
            raise ValueError(f"expected a {what} for {name!r}, but there is none")
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(f"expected finite weights, but {name!r} has others")
    for name, tensor in precision.items():
        if name not in parameters:
            raise ValueError(f"got a {what} for {name!r}, which is no selected parameter")
        shape = tuple(parameters[name].shape)
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"expected a {what} of shape {shape} for {name!r}, got {tuple(tensor.shape)}"
            )
        if not bool((torch.isfinite(tensor) & (tensor >= 0)).all()):
            raise ValueError(
                f"expected a finite {what} >= 0 for {name!r}, but it has other entries"
            )


@cache
def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type wells are kept in: that of the parameter, but at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _fits(tensor: Tensor, name: str, parameters: Mapping[str, Tensor]) -> bool:
    parameter = parameters.get(name)
    return (
        parameter is not None
        and tensor.shape == parameter.shape
        and tensor.device == parameter.device
        and tensor.dtype == wide(parameter.dtype)
    )


def _fitted(tensor: Tensor, name: str, parameters: Mapping[str, Tensor]) -> Tensor:
    if name not in parameters:
        raise ValueError(
            f"the memory holds {name!r}, which the model no longer has; "
            "forget its tasks or leave it out with parameters='!...' from the start"
        )
    parameter = parameters[name]
    old, now = tuple(tensor.shape), tuple(parameter.shape)
    if len(old) != len(now) or any(a > b for a, b in zip(old, now, strict=True)):
        raise ValueError(
            f"expected {name!r} to keep or gain rows and columns since it was consolidated, "
            f"but its shape went from {old} to {now}"
        )
    tensor = tensor.to(device=parameter.device, dtype=wide(parameter.dtype))
    if old == now:
        return tensor
    grown = tensor.new_zeros(now)
    grown[tuple(slice(size) for size in old)] = tensor
    return grown
