"""What a step size is, and how rules read the state of an optimizer."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ewc.blocks import Block
from ewc.blocks import ParamState as ParamState  # public here too
from ewc.dtypes import widened

How = Literal["proximal", "gradient"]
TINY = 1e-36  # a moment this small counts as zero: its root is far below any eps in use
SMALLEST_EPS = 1e-18  # with eps=0 a weight that never had a gradient would be pulled by 0 / 0
ParamGroup = Mapping[str, Any]  # one of `optimizer.param_groups`


class StepSize(NamedTuple):
    """η = rate / scale for each weight; without scale, the same η for all.

    If eps is given, scale has squares, as they are in the optimizer: η = rate / (√scale + eps).
    `gains` has η √v̂ / lr of each parameter, with v̂ the second moment, where that is not 1: how far
    a gradient that stays the same moves its weights, in units of lr.
    """

    rate: float
    scale: list[Tensor] | None = None
    eps: float | None = None
    gains: list[float] | list[Tensor] | None = None

    def softness(self, strength: float) -> float:
        """Return 1 / (rate · λ), which the scale is multiplied by to be compared with P.

        A rate · λ beyond 1e18 cannot make the pull any stiffer, and with that bound the divisor
        P + softness · scale does not vanish where P = 0. Below 1e-30 there is no pull, and 1e30 is
        still a number in float32.
        """
        return 1 / min(max(self.rate * strength, 1e-30), 1e18)

    def rooted(self) -> "StepSize":
        """Return the same step size with the scale itself instead of its squares."""
        if self.scale is None or self.eps is None:
            return self
        # On CPUs the root of zero, the moment of a dead unit's weights, takes six times as long.
        scale = [widened(square).clamp_min(TINY).sqrt_() for square in self.scale]
        torch._foreach_add_(scale, self.eps)
        return StepSize(self.rate, scale, gains=self.gains)


StepSizeRule = Callable[[ParamGroup, Sequence[Tensor], Sequence[ParamState]], StepSize]
# What else to do before the pull, from the step size, its rooted scale and the weights of the pull.
Correction = Callable[[ParamGroup, Block, StepSize, list[Tensor], list[Tensor]], None]


def moments(key: str, parameters: Sequence[Tensor], states: Sequence[ParamState]) -> list[Tensor]:
    """Return the optimizer's moments; zero, as in the optimizer, before the first step."""
    return [
        state[key] if state else torch.zeros_like(parameter)
        for parameter, state in zip(parameters, states, strict=True)
    ]


def one_minus(momentum: float) -> float:
    """Return 1 − μ; raise if that is not positive."""
    if momentum >= 1:
        raise ValueError(f"expected momentum < 1 for how='proximal', got {momentum}")
    return 1 - momentum


def bias_corrections(beta: float, states: Sequence[ParamState]) -> list[float] | list[Tensor]:
    """Return 1 − β^t of each parameter, t being its number of steps.

    These are numbers if all t are in the memory of the CPU, where reading them is free. Otherwise
    they are tensors, so that no step waits for the device; a first step that was skipped counts.
    """
    if on_cpu(states):
        return [1 - beta ** float(state["step"]) if state else 1.0 for state in states]
    powers = torch._foreach_mul(device_steps(states), math.log(max(beta, TINY)))
    torch._foreach_expm1_(powers)
    torch._foreach_neg_(powers)
    return list(powers)


def on_cpu(states: Sequence[ParamState]) -> bool:
    """Whether all step counts can be read without waiting for a device."""
    steps = (state["step"] for state in states if state)
    return all(not isinstance(step, Tensor) or step.device.type == "cpu" for step in steps)


def device_steps(states: Sequence[ParamState]) -> list[Tensor]:
    """Return the step counts, which are on a device, at least 1."""
    some = next(state["step"] for state in states if state)
    steps = [state["step"].float() if state else torch.ones_like(some) for state in states]
    return list(torch._foreach_clamp_min(steps, 1.0))


def eps_of(group: ParamGroup) -> float:
    """Return the ε of the optimizer, and a very small one instead of zero."""
    return max(float(group["eps"]), SMALLEST_EPS)
