"""Quadratic wells: what a task leaves behind, and how several wells add up to one.

A sum of quadratics is a quadratic: two tensors per parameter and one number describe it, whatever
the number of tasks. Instead of ΣF and ΣFθ* we keep (precision, anchor) = (ΣF, ΣFθ*/ΣF), and instead
of ΣFθ*² the offset, the energy at the bottom of the well, so that nothing cancels in float32. The
mean of several anchors is rounded. Where the anchors lie so close together that the rounding would
show, a third tensor keeps the remainder.

Wells are never changed in place: a new one takes the place of the old.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from ewc.curvature.kronecker import AdapterLayer, Layer, layer_diagonals, merged_layers
from ewc.distributed.shards import (
    all_true,
    assembled,
    differentiable_shard,
    laid_out_like,
    refuse_deepspeed,
    same_layout,
    shard,
    sum_of_shards,
    sums_of_shards,
    whole,
)
from ewc.parameters import at_least_float32, name_before_peft


@dataclass(frozen=True)
class Well:
    """E(θ) = Σ_i precision_i (θ_i − anchor_i − remainder_i)² + offset, by parameter name.

    The remainder is about one rounding of the anchor; a parameter that is not in it has none.

    Weight matrices in `layers` have Kronecker factors in place of a precision, and so have their
    biases. Their anchors are with the others.
    """

    precision: Mapping[str, Tensor] = field(default_factory=dict)
    anchor: Mapping[str, Tensor] = field(default_factory=dict)
    offset: float = 0.0
    remainder: Mapping[str, Tensor] = field(default_factory=dict)
    layers: Mapping[str, Layer] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that the well protects."""
        return tuple(self.anchor)

    def diagonals(self) -> dict[str, Tensor]:
        """Return the diagonal precision of all parameters, that of the layers included."""
        diagonals = layer_diagonals(self.layers, self.anchor)
        for name, tensor in self.precision.items():
            diagonals[name] = diagonals[name] + tensor if name in diagonals else tensor
        return diagonals

    def joined_distance(self, name: str, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return θ − anchor of a layer, the weight and its bias in one matrix."""
        layer = self.layers[name]
        own = (name,) if layer.bias is None else (name, layer.bias)
        distances = {each: self.distance(each, parameters[each]) for each in own}
        return layer.joined(name, distances, self.anchor)

    def decomposed(self) -> "Well":
        """Return the well with the eigenvectors of its layers, which the pull needs."""
        if not self.layers:
            return self
        return replace(self, layers={n: layer.decomposed() for n, layer in self.layers.items()})

    def distance(self, name: str, parameter: Tensor) -> Tensor:
        """Return θ − anchor − remainder of one parameter, in the dtype of the anchor."""
        distance = parameter.to(self.anchor[name].dtype) - self.anchor[name]
        return distance.sub_(self.remainder[name]) if name in self.remainder else distance

    def map(self, change: Callable[[str, Tensor], Tensor]) -> "Well":
        """Return the well with each of its tensors replaced by `change(name, tensor)`."""
        return Well(
            {name: change(name, tensor) for name, tensor in self.precision.items()},
            {name: change(name, tensor) for name, tensor in self.anchor.items()},
            self.offset,
            {name: change(name, tensor) for name, tensor in self.remainder.items()},
            self.layers,
        )

    def local(self) -> "Well":
        """Return this rank's part of the well, as plain tensors; all of it if not sharded."""
        return self.map(lambda name, tensor: shard(tensor))

    def assembled(self, like: Mapping[str, Tensor]) -> "Well":
        """Return the well of which this is the `local` one, sharded as the tensors in `like`."""
        return self.map(lambda name, tensor: assembled(tensor, like[name]))

    def to(self, device: torch.device) -> "Well":
        """Return the well with its tensors on `device`."""
        moved = self.map(lambda name, tensor: tensor.to(device))
        layers = {n: layer.map(lambda f: f.on(device)) for n, layer in self.layers.items()}
        return replace(moved, layers=layers)


def well_at(
    parameters: Mapping[str, Tensor],
    precision: Mapping[str, Tensor],
    layers: Mapping[str, Layer] | None = None,
) -> Well:
    """Return the well around the current values of the parameters; both are copied.

    Raises if the precision does not belong to the parameters, see `check_precision`.

    Args:
        parameters: all parameters that the well protects.
        precision: that of the parameters that are in no layer.
        layers: the precision of weight matrices and their biases.
    """
    layers = {n: layer.fitted(n, parameters) for n, layer in (layers or {}).items()}
    in_layers = layers.keys() | {layer.bias for layer in layers.values()}
    check_precision(precision, {n: p for n, p in parameters.items() if n not in in_layers})
    check_weights({n: p for n, p in parameters.items() if n in in_layers})
    well = Well(
        {name: tensor.detach().clone() for name, tensor in precision.items()},
        {
            name: p.detach().to(at_least_float32(p.dtype), copy=True)
            for name, p in parameters.items()
        },
        layers=layers,
    )
    return fitted(well, parameters)


def uniform_precision(parameters: Mapping[str, Tensor], value: float) -> dict[str, Tensor]:
    """Return the same precision for every weight."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected precision to be finite and >= 0, got {value}")
    return {
        name: torch.full_like(p, value, dtype=at_least_float32(p.dtype), requires_grad=False)
        for name, p in parameters.items()
    }


def energy(well: Well, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return E(θ) of the well, differentiable in the parameters.

    The penalty is λ/2 times this: see `PullState.penalty`.
    """
    names = [name for name in parameters if name in well.precision]
    local = well.local()
    terms = [
        (local.precision[name] * local.distance(name, parameter).square()).sum()
        for name in names
        for parameter in [differentiable_shard(parameters[name])]
    ]
    terms = sums_of_shards(terms, [parameters[name] for name in names])
    for name, layer in well.layers.items():
        if name in parameters:
            terms.append(layer.energy(well.joined_distance(name, parameters)))
    return sum((term.to(terms[0].device) for term in terms), torch.zeros(())) + well.offset


def energy_at_zero(well: Well, parameters: Mapping[str, Tensor]) -> float:
    """Return E(0) of the well, Σ_t Σ_i F_ti θ*_ti² of its tasks, one parameter at a time.

    Args:
        well: the well.
        parameters: those that it was made for, which say how it is sharded.
    """
    adapters = {n: layer for n, layer in well.layers.items() if isinstance(layer, AdapterLayer)}
    others = {name: layer for name, layer in well.layers.items() if name not in adapters}
    bare = replace(well, offset=0.0, layers=others)
    biases = {name: layer.bias for name, layer in well.layers.items() if layer.bias is not None}
    groups = ((name, biases[name]) if name in biases else (name,) for name in parameters)
    zeros = ({name: torch.zeros_like(parameters[name]) for name in group} for group in groups)
    of_weights = [layer.at_zero for layer in adapters.values()]
    return math.fsum([*of_weights, *(float(energy(bare, zero)) for zero in zeros)]) + well.offset


Center = Literal["latest", "each"]


def merged(wells: Iterable[Well], decay: float, center: Center = "each") -> Well:
    """Return one well for several, oldest first.

    Args:
        wells: one per task.
        decay: γ of online EWC, by which the precision so far is multiplied for each new task.
        center: `"each"` gives the sum of the wells, if nothing fades; else all lie around the
            anchor of the last one.
    """
    if decay == 1 and center == "each":
        return reduce(add, wells, Well())
    return reduce(lambda old, new: online_update(old, new, decay), wells, Well()).decomposed()


def add(a: Well, b: Well, *, offset: bool = True) -> Well:
    """Return the well whose energy is that of `a` plus that of `b`, everywhere.

    P = P_a + P_b,  m = (P_a m_a + P_b m_b) / P,
    offset = offset_a + offset_b + Σ (P_a P_b / P) (m_a − m_b)²

    Without `offset` only P and the rounded m, which is all that pulls: no value is read from a
    device.
    """
    layout = {**a.precision, **b.precision}
    a, b = a.local(), b.local()
    precision = {**a.precision, **b.precision}
    anchor = {**a.anchor, **b.anchor}
    remainder = {**a.remainder, **b.remainder}
    offsets = [a.offset, b.offset]
    # In the same order in all ranks, which add up their shards together.
    for name in (name for name in a.precision if name in b.precision):
        precision[name] = a.precision[name] + b.precision[name]
        share = (b.precision[name] / precision[name]).nan_to_num(nan=0.0)  # 0/0: neither pulls
        anchor[name] = torch.lerp(a.anchor[name], b.anchor[name], share)
        if not offset:
            continue
        # The mean again, measured from its rounded value: differences of close numbers are exact.
        from_a, from_b = (well.distance(name, anchor[name]).neg_() for well in (a, b))
        remainder[name] = torch.lerp(from_a, from_b, share)
        apart = from_a - from_b
        energy_between = (a.precision[name] * share * apart.square()).sum()
        lost = (precision[name] * remainder[name].square()).sum()
        offsets.append(float(sum_of_shards(energy_between, layout[name])))
        error = _energy_error(float(sum_of_shards(lost, layout[name])), offsets[-1])
        if error < 8 * torch.finfo(remainder[name].dtype).eps:
            del remainder[name]
    if not offset:
        return Well(precision, anchor).assembled(layout)
    lowest = math.fsum(offsets)  # the same in any order
    return Well(precision, anchor, lowest, remainder).assembled(layout)


def _energy_error(lost: float, offset: float) -> float:
    """Return how wrong E could be without the remainder r, which has the energy `lost` = Σ P r².

    |ΔE| / E <= 2 Σ P |r| |θ − m| / (Σ P (θ − m)² + offset) <= √(Σ P r² / offset), for every θ.
    """
    if lost == 0:
        return 0.0
    return math.sqrt(lost / offset) if offset > 0 else math.inf


def online_update(old: Well, new: Well, decay: float) -> Well:
    """Return the well of online EWC (Schwarz et al. 2018): P = decay P_old + P_new around m_new.

    With a decay of 1 that is Bayes' rule for a quadratic approximation around the last weights
    (Huszár 2018). Parameters that only `old` has keep their anchor.
    """
    layers = merged_layers(old.layers, new.layers, decay)
    layout = {**old.anchor, **new.anchor}
    old, new = old.local(), new.local()
    precision = {name: decay * tensor for name, tensor in old.precision.items()}
    for name, tensor in new.precision.items():
        precision[name] = precision[name] + tensor if name in precision else tensor
    remainder = {name: tensor for name, tensor in old.remainder.items() if name not in new.anchor}
    anchor = {**old.anchor, **new.anchor}
    remainder |= new.remainder
    return replace(Well(precision, anchor, remainder=remainder).assembled(layout), layers=layers)


def fitted(well: Well, parameters: Mapping[str, Tensor]) -> Well:
    """Return the well in the shape, device and dtype (at least float32) of its parameters.

    A parameter that gained rows or columns is protected on its old part, the leading block, and
    free on the rest. One that shrank, changed rank or vanished raises. A well that fits is
    returned as it is.
    """
    # Called at every step. Anchors are made together with precisions, so one of them is enough.
    if all(_tensor_fits(tensor, name, parameters) for name, tensor in well.anchor.items()):
        return well
    moved = well.map(lambda name, tensor: _fitted_tensor(tensor, name, parameters))
    for name in well.layers:
        old, now = well.anchor[name].shape, parameters[name].shape
        if old[2:] != now[2:]:
            raise ValueError(
                f"expected the kernel of {name!r} to keep its size, but its shape went from "
                f"{tuple(old)} to {tuple(now)}"
            )
    layers = {name: layer.fitted(name, parameters) for name, layer in well.layers.items()}
    return replace(moved, layers=layers)


def check_precision(
    precision: Mapping[str, Tensor], parameters: Mapping[str, Tensor], what: str = "precision"
) -> None:
    """Raise unless there is a finite tensor >= 0 for each parameter, and for no other.

    Args:
        precision: one tensor per parameter, by name.
        parameters: the parameters that it must have been made for.
        what: the word for `precision` in error messages.
    """
    for name in parameters:
        if name not in precision:
            raise ValueError(f"expected a {what} for {name!r}, but there is none")
    check_weights(parameters, what)
    for name, tensor in precision.items():
        if name not in parameters:
            raise ValueError(f"got a {what} for {name!r}, which is not a selected parameter")
        shape = tuple(parameters[name].shape)
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"expected a {what} of shape {shape} for {name!r}, got {tuple(tensor.shape)}"
            )
        if not all_true(torch.isfinite(tensor) & (tensor >= 0)):
            raise ValueError(
                f"expected a finite {what} >= 0 for {name!r}, but it has other entries"
            )


def check_weights(parameters: Mapping[str, Tensor], what: str = "precision") -> None:
    """Raise if a parameter is complex or not finite."""
    for name, parameter in parameters.items():
        if parameter.is_complex():
            raise TypeError(
                f"a {what} of a complex parameter is not defined here: leave out {name!r} "
                f"with parameters='!{name}'"
            )
        if not all_true(torch.isfinite(parameter)):
            raise ValueError(f"expected finite weights, but {name!r} has NaN or infinite ones")


def _tensor_fits(tensor: Tensor, name: str, parameters: Mapping[str, Tensor]) -> bool:
    parameter = parameters.get(name)
    return (
        parameter is not None
        and tensor.shape == parameter.shape
        and tensor.device == parameter.device
        and tensor.dtype == at_least_float32(parameter.dtype)
        and same_layout(tensor, parameter)
    )


def _fitted_tensor(tensor: Tensor, name: str, parameters: Mapping[str, Tensor]) -> Tensor:
    if name not in parameters:
        if any(name_before_peft(other) == name for other in parameters if other != name):
            raise ValueError(
                f"the memory protects {name!r}, but PEFT has wrapped the model since and froze "
                "that weight: call get_peft_model first (and give the trainer no peft_config), "
                "then make the memory of its model, LoraEWC(model) of ewc.integrations.peft, and "
                "consolidate that before training. Or save this memory before, with "
                "save_pretrained(DIR), and give the trainer EWCCallback(DIR)"
            )
        raise ValueError(
            f"the memory protects {name!r}, which the model no longer has; "
            "forget its tasks, or exclude it with parameters='!...' from the start"
        )
    parameter = parameters[name]
    old, now = tuple(tensor.shape), tuple(parameter.shape)
    if old != now:
        refuse_deepspeed(parameters=[parameter])  # ZeRO 3 leaves an empty tensor in its place
    if len(old) != len(now) or any(a > b for a, b in zip(old, now, strict=True)):
        raise ValueError(
            f"expected {name!r} to keep or gain rows and columns since it was consolidated, "
            f"but its shape went from {old} to {now}"
        )
    tensor = tensor.to(device=parameter.device, dtype=at_least_float32(parameter.dtype))
    if old != now:
        block = whole(tensor)
        tensor = block.new_zeros(now)
        tensor[tuple(slice(size) for size in old)] = block
    return laid_out_like(tensor, parameter)
