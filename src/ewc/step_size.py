"""How large the steps of an optimizer are, and what else the pull has to know about it.

The proximal pull has its fixed point at the minimum of loss + penalty if η is the step that the
optimizer takes for a weight in the long run: update = η · gradient. This file knows η for SGD,
Adam, AdamW and RMSprop. AdamW and centered RMSprop do more with the gradients they see, which are
those of the loss alone; the pull corrects that.
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer, RMSprop

from ewc.blocks import Block, block_size, blocks
from ewc.blocks import ParamState as ParamState  # public here too
from ewc.dtypes import widened
from ewc.pull_state import PullState
from ewc.sharding import shard_values, shards

How = Literal["proximal", "gradient"]
TINY = 1e-36  # a moment this small counts as zero: its root is far below any eps in use
SMALLEST_EPS = 1e-30  # with eps=0 a weight that never had a gradient would be pulled by 0 / 0
DEVIATION = 0.1  # smallest deviation of gradients in centered RMSprop, relative to their mean
ParamGroup = Mapping[str, Any]  # one of `optimizer.param_groups`


class StepSize(NamedTuple):
    """η = rate / scale for each weight; without scale, the same η for all."""

    rate: float
    scale: list[Tensor] | None = None


StepSizeRule = Callable[[ParamGroup, Sequence[Tensor], Sequence[ParamState]], StepSize]
Correction = Callable[[ParamGroup, Block, StepSize, list[Tensor]], None]


def step_size_rule(optimizer: Optimizer) -> StepSizeRule:
    """Return the function that computes the step size of this optimizer, or raise.

    A subclass counts as its parent as long as it does not define a `step` of its own. Your own
    optimizer can define its step size in a method `step_size`, with the arguments of the functions
    below.
    """
    own: StepSizeRule | None = getattr(optimizer, "step_size", None)
    rule = own or _RULES.get(inspect.unwrap(type(optimizer).step))
    if rule is None:
        raise ValueError(
            "how='proximal' knows the steps of SGD, Adam, AdamW and RMSprop, not those of "
            f"{type(optimizer).__name__}; use attach(optimizer, how='gradient'), "
            "or give it a method step_size(group, parameters, states) -> ewc.step_size.StepSize"
        )
    return rule


def sgd_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr; with momentum μ and dampening d, lr (1 − d) / (1 − μ), with Nesterov or without.

    A constant gradient moves the weight by that much per step, once the momentum buffer is full.
    """
    momentum = float(group["momentum"])
    if momentum == 0:
        return StepSize(float(group["lr"]))
    return StepSize(float(group["lr"]) * (1 - group["dampening"]) / _one_minus(momentum))


def adam_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr / (√v̂ + ε), with v̂ = v / c the bias-corrected second moment.

    With amsgrad v is its maximum. Where all have taken as many steps, η is computed as
    lr √c / (√v + ε √c), which is one operation less.
    """
    scale = _roots(
        moments("max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq", parameters, states)
    )
    rate, eps = float(group["lr"]), max(group["eps"], SMALLEST_EPS)
    corrections = bias_corrections(float(group["betas"][1]), states)
    if isinstance(first := corrections[0], float) and all(one == first for one in corrections):
        rate, eps = rate * first**0.5, eps * first**0.5
    else:
        torch._foreach_div_(scale, [one**0.5 for one in corrections])
    torch._foreach_add_(scale, eps)
    return StepSize(rate, scale)


def undo_excess_decay(
    group: ParamGroup, block: Block, step: StepSize, weights: list[Tensor]
) -> None:
    """Make AdamW's weight decay δ count as much as with the penalty in the loss.

    AdamW comes to rest where gradient + δ (√v + ε) θ = 0, with v the second moment of the whole
    gradient. It saw only v̂, that of the loss, and not the pull, which balances the mean of it. In
    terms of its own step A = lr · ḡ / (√v̂ + ε) and that of the pull D = w (θ − m),

        v / v̂ = 1 + D (2A + D) / lr²

    so it decayed the weight by lr · δ (1 − √(v / v̂)) too much, which is added back.
    """
    decay, rate = float(group["weight_decay"]), float(group["lr"])
    moved = [index for index, gradient in enumerate(block.gradients) if gradient]
    if decay == 0 or not group.get("decoupled_weight_decay", False) or not moved:
        return
    assert step.scale is not None
    parameters, anchors, weights, scale = (
        [tensors[i] for i in moved]
        for tensors in (block.parameters, block.anchors, weights, step.scale)
    )
    states = [block.states[i] for i in moved]
    pull = torch._foreach_sub(parameters, anchors)
    torch._foreach_mul_(pull, weights)
    means = [state["exp_avg"].to(one.dtype) for state, one in zip(states, pull, strict=True)]
    corrections = bias_corrections(float(group["betas"][0]), states)
    if isinstance(corrections[0], Tensor):
        means, corrections = list(torch._foreach_div(means, corrections)), [1.0] * len(means)
    change = torch._foreach_addcdiv(pull, means, scale, [2 * step.rate / c for c in corrections])
    torch._foreach_mul_(change, pull)
    for one in change:  # at most 0, where the pull balances the gradient; and no root of 0
        one.clamp_(-rate * rate * (1 - 1e-6), 0.0)
    torch._foreach_add_(change, rate**2)
    torch._foreach_sqrt_(change)
    torch._foreach_sub_(change, rate)
    torch._foreach_addcmul_(parameters, parameters, change, value=-decay)


def rmsprop_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr / (√v + ε), centered lr / (√(v − ḡ²) + ε), each over 1 − μ with momentum μ."""
    squares = moments("square_avg", parameters, states)
    if group["centered"]:
        means = moments("grad_avg", parameters, states)
        squares = list(torch._foreach_addcmul(squares, means, means, value=-1.0))
    scale = _roots(squares)
    torch._foreach_add_(scale, max(group["eps"], SMALLEST_EPS))
    return StepSize(float(group["lr"]) / _one_minus(float(group["momentum"])), scale)


def bound_deviation(group: ParamGroup, block: Block, step: StepSize, weights: list[Tensor]) -> None:
    """Keep the deviation √(v − ḡ²) that centered RMSprop divides by at a tenth of |ḡ| or more.

    The pull balances a constant gradient, and the deviation of such a gradient vanishes unless it
    is noisy: steps would grow without bound, and become NaN where rounding gives less than zero.
    """
    if group["centered"]:
        means = moments("grad_avg", block.parameters, block.states)
        least = torch._foreach_mul(means, means)
        torch._foreach_mul_(least, 1 + DEVIATION**2)
        squares = moments("square_avg", block.parameters, block.states)
        torch._foreach_maximum_(squares, least)


_RULES: dict[Callable[..., Any], StepSizeRule] = {
    inspect.unwrap(SGD.step): sgd_step_size,
    inspect.unwrap(Adam.step): adam_step_size,
    inspect.unwrap(RMSprop.step): rmsprop_step_size,
}
CORRECTIONS: dict[StepSizeRule, Correction] = {
    adam_step_size: undo_excess_decay,
    rmsprop_step_size: bound_deviation,
}


def stability_limit(optimizer: Optimizer, group: ParamGroup) -> float:
    """Return the lr · λ · P above which a pull through the gradient diverges.

    That is 2 for SGD, 2 (1 + μ) / (1 − d) with momentum μ and dampening d, and
    2 (1 + μ) / (1 + 2μ) with Nesterov. It is infinite for other optimizers, which divide by the
    size of the gradient or are not known.
    """
    if not isinstance(optimizer, SGD):
        return float("inf")
    momentum = float(group["momentum"])
    if momentum == 0:
        return 2.0
    if group["nesterov"]:
        return 2 * (1 + momentum) / (1 + 2 * momentum)
    remainder = 1 - float(group["dampening"])
    return 2 * (1 + momentum) / remainder if remainder > 0 else float("inf")


def pulled_groups(
    optimizer: Optimizer, state: PullState
) -> Iterator[tuple[int, ParamGroup, list[str]]]:
    """Yield the groups that have protected parameters: index, group, names of the parameters."""
    names = {
        id(state.parameters[name]): name
        for name in state.well.precision
        if state.parameters[name].requires_grad
    }
    for index, group in enumerate(optimizer.param_groups):
        if in_group := [names[id(p)] for p in group["params"] if id(p) in names]:
            yield index, group, in_group


def pulled_blocks(optimizer: Optimizer, state: PullState) -> Iterator[tuple[ParamGroup, Block]]:
    """Yield the protected parameters in blocks, each with its group."""
    for _, group, names in pulled_groups(optimizer, state):
        parameters = shards(state.parameters[name] for name in names)
        states = [shard_values(optimizer.state.get(state.parameters[name], {})) for name in names]
        precisions = shards(state.well.precision[name] for name in names)
        anchors = shards(state.well.anchor[name] for name in names)
        size = blocks_of(optimizer, parameters[0].device)
        group = {**group, "lr": float(group["lr"])}  # read once, in case it is on a device
        for block in blocks(parameters, states, precisions, anchors, size):
            yield group, block


def blocks_of(optimizer: Optimizer, device: torch.device) -> int:
    """Return how many numbers the rule of this optimizer takes at a time.

    A `step_size` of the optimizer's own gets whole parameters, as its states may have other shapes.
    """
    return sys.maxsize if hasattr(optimizer, "step_size") else block_size(device)


def moments(key: str, parameters: Sequence[Tensor], states: Sequence[ParamState]) -> list[Tensor]:
    """Return the optimizer's moments; zero, as in the optimizer, before the first step."""
    return [
        state[key] if state else torch.zeros_like(parameter)
        for parameter, state in zip(parameters, states, strict=True)
    ]


def _one_minus(momentum: float) -> float:
    if momentum >= 1:
        raise ValueError(f"expected momentum < 1 for how='proximal', got {momentum}")
    return 1 - momentum


def bias_corrections(beta: float, states: Sequence[ParamState]) -> list[float] | list[Tensor]:
    """Return 1 − β^t of each parameter, t being its number of steps.

    These are numbers if all t are in the memory of the CPU, where reading them is free. Otherwise
    they are tensors, so that no step waits for the device; a first step that was skipped counts.
    """
    if on_cpu([state["step"] for state in states if state]):
        return [1 - beta ** float(state["step"]) if state else 1.0 for state in states]
    some = next(state["step"] for state in states if state)
    steps = [state["step"].float() if state else torch.ones_like(some) for state in states]
    powers = torch._foreach_mul(torch._foreach_clamp_min(steps, 1.0), math.log(max(beta, TINY)))
    torch._foreach_expm1_(powers)
    torch._foreach_neg_(powers)
    return list(powers)


def on_cpu(steps: Sequence[Tensor | float]) -> bool:
    """Whether all step counts can be read without waiting for a device."""
    return all(not isinstance(step, Tensor) or step.device.type == "cpu" for step in steps)


def _roots(moments: Sequence[Tensor]) -> list[Tensor]:
    # On CPUs the root of zero, the moment of a dead unit's weights, takes six times as long.
    return [widened(moment).clamp_min(TINY).sqrt_() for moment in moments]
