"""Signs that a memory pulls too strongly, or not on all that it holds: seen early and told once.

Nothing here reads tensors at every step, only when the wells are other ones or lr · λ has grown.
"""

import math
import operator
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.step_size import held_groups, stable_below, step_size_rule
from ewc.warnings import warn_of_divergence, warn_of_standstill, warn_of_unowned
from ewc.wells import Held, Well

# The least `surviving_share` that passes without a warning. On permuted MNIST (784-200-200-10, SGD
# at 0.1 with momentum 0.9 and Adam at 1e-3, λ from 1 to 1e8, a floor of 0 or 0.02) the next task
# was learned wherever 0.22 or more survived, and not at all where 0.01 or less did.
STANDSTILL = 0.1
GROWN = 10.0  # times the lr · λ last looked at


class OwnerWatch:
    """Whether all that a memory holds belongs to the optimizers that it is attached to."""

    def __init__(self) -> None:
        self._seen: tuple[Well, list[nn.Parameter]] | None = None

    def check(self, attached: Iterable[Optimizer], held: Held, told: set[str]) -> None:
        """Warn, once, of held parameters that no attached optimizer has."""
        parameters = [held.parameters[name] for name in held.well.precision]
        if held.strength == 0 or self._is_seen(held.well, parameters):
            return
        self._seen = (held.well, parameters)
        groups = [group for optimizer in attached for group in optimizer.param_groups]
        owned = {id(parameter) for group in groups for parameter in group["params"]}
        unowned = [
            name
            for name, parameter in zip(held.well.precision, parameters, strict=True)
            if parameter.requires_grad and id(parameter) not in owned
            if f"unowned {name}" not in told and bool(held.well.precision[name].any())
        ]
        if unowned:
            told.update(f"unowned {name}" for name in unowned)
            warn_of_unowned(unowned)

    def _is_seen(self, well: Well, parameters: list[nn.Parameter]) -> bool:
        if self._seen is None or self._seen[0] is not well:
            return False
        return all(map(operator.is_, self._seen[1], parameters))


class StrengthWatch:
    """What was looked at on one optimizer; `told` is what its memory has warned of already."""

    def __init__(self) -> None:
        self._seen: tuple[Well, float] | None = None
        self._largest: tuple[Well, dict[str, float]] | None = None

    def check_implicit(self, optimizer: Optimizer, held: Held, told: set[str]) -> None:
        """Warn, once, if hardly anything of the step that was just taken survives the pull."""
        if "standstill" in told:
            return
        pace = held.strength * max(float(group.get("lr", 1.0)) for group in optimizer.param_groups)
        if self._seen is not None and self._seen[0] is held.well and pace <= GROWN * self._seen[1]:
            return
        self._seen = (held.well, pace)
        if (share := surviving_share(optimizer, held)) < STANDSTILL:
            told.add("standstill")
            warn_of_standstill(share, held.strength)

    def check_explicit(self, optimizer: Optimizer, held: Held, told: set[str]) -> None:
        """Warn, once, before an explicit pull that overshoots its anchor ever further."""
        if "divergence" in told:
            return
        for _, group, names in held_groups(optimizer, held):
            limit, rate = stable_below(optimizer, group), group["lr"]
            if limit == math.inf or (isinstance(rate, Tensor) and rate.device.type != "cpu"):
                continue  # a rate on another device would have to be waited for at every step
            largest = self._largest_precisions(held.well)
            name = max(names, key=largest.__getitem__)
            if (product := float(rate) * held.strength * largest[name]) > limit:
                told.add("divergence")
                warn_of_divergence(name, product, limit)
                return

    def _largest_precisions(self, well: Well) -> dict[str, float]:
        if self._largest is None or self._largest[0] is not well:
            precisions = {name: p for name, p in well.precision.items() if p.numel()}
            largest = {name: float(p.max()) for name, p in precisions.items()}
            self._largest = (well, dict.fromkeys(well.precision, 0.0) | largest)
        return self._largest[1]


def surviving_share(optimizer: Optimizer, held: Held) -> float:
    """Return how much of the optimizer's step the pull leaves: Σ |Δ| / (1 + ηλP) over Σ |Δ|.

    Δ = ηg is the step of each weight; those that are not held count too, and survive.
    """
    rule = step_size_rule(optimizer)
    names = {id(held.parameters[name]): name for name in held.well.precision}
    survived, total = 0.0, 0.0
    for group in optimizer.param_groups:
        if not (moved := [p for p in group["params"] if p.grad is not None]):
            continue
        step = rule(group, moved, [optimizer.state.get(p, {}) for p in moved])
        for index, parameter in enumerate(moved):
            rate = step.rate if step.scale is None else step.rate / step.scale[index]
            change = _dense(parameter.grad).abs() * rate
            total += float(change.sum())
            if (name := names.get(id(parameter))) is not None:
                change = change / (1 + rate * held.strength * held.well.precision[name])
            survived += float(change.sum())
    return survived / total if total > 0 else 1.0


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.layout != torch.strided else gradient
