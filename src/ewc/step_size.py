"""What an optimizer makes of a gradient, as far as the pull has to know.

The proximal pull has its fixed point at the minimum of loss + penalty when η is the step that the
optimizer takes for a weight in the long run: update = η · gradient. That is known for the
optimizers below. Two of them do more with the gradients that they see, which are those of the loss
alone, and are corrected.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer, RMSprop

from ewc.wells import Held

How = Literal["proximal", "gradient"]
TINY = 1e-36  # a moment so small is as good as zero: its root is far below any eps in use
SMALLEST_EPS = 1e-30  # with eps=0 a weight that never had a gradient would be pulled by 0 / 0
DEVIATION = 0.1  # the least deviation of gradients in centered RMSprop, relative to their mean
Group = Mapping[str, Any]
State = Mapping[str, Tensor]


class StepSize(NamedTuple):
    """η = rate / scale for each weight; without scale, the same η for all."""

    rate: float
    scale: list[Tensor] | None = None


class Pulled(NamedTuple):
    """The held parameters of one group between the optimizer's step and θ ← θ + w (m − θ)."""

    parameters: list[Tensor]
    states: list[State]
    anchors: list[Tensor]
    weights: list[Tensor]
    step: StepSize


StepSizeRule = Callable[[Group, Sequence[Tensor], Sequence[State]], StepSize]
Correction = Callable[[Group, Pulled], None]


def step_size_rule(optimizer: Optimizer) -> StepSizeRule:
    """Return the function that knows the steps of this optimizer, or raise.

    A subclass counts as its parent as long as it does not bring a `step` of its own. An optimizer
    of one's own can say itself what its steps are, with a method `step_size` that takes what the
    rules below take.
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


def sgd_step_size(group: Group, parameters: Sequence[Tensor], states: Sequence[State]) -> StepSize:
    """η = lr; with momentum μ and dampening d, lr (1 − d) / (1 − μ), Nesterov or not.

    A gradient that stays the same moves the weight by that much per step once the buffer is full.
    """
    momentum = float(group["momentum"])
    if momentum == 0:
        return StepSize(float(group["lr"]))
    return StepSize(float(group["lr"]) * (1 - group["dampening"]) / _one_minus(momentum))


def adam_step_size(group: Group, parameters: Sequence[Tensor], states: Sequence[State]) -> StepSize:
    """η = lr / (√v̂ + ε), with v̂ the bias-corrected second moment (its maximum with amsgrad)."""
    key = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
    scale = _roots(moments(key, parameters, states))
    corrections = _bias_corrections(float(group["betas"][1]), states)
    torch._foreach_mul_(scale, [correction**-0.5 for correction in corrections])
    torch._foreach_add_(scale, max(group["eps"], SMALLEST_EPS))
    return StepSize(float(group["lr"]), scale)


def spare_decay(group: Group, about: Pulled) -> None:
    """Let AdamW's weight decay δ count as much as it would with the penalty in the loss.

    AdamW comes to rest where gradient + δ (√v + ε) θ = 0, with v the second moment of the whole
    gradient. It saw that of the loss alone, v̂, and not the pull, which balances the mean of it. In
    terms of its own step A = lr · ḡ / (√v̂ + ε) and that of the pull D = w (θ − m),

        v / v̂ = 1 + D (2A + D) / lr²

    and lr · δ (1 − √(v / v̂)) of the weight was decayed too much: it is given back.
    """
    decay = float(group["weight_decay"])
    moved = [i for i, parameter in enumerate(about.parameters) if parameter.grad is not None]
    if decay == 0 or not group.get("decoupled_weight_decay", False) or not moved:
        return
    assert about.step.scale is not None
    rate = about.step.rate
    parameters, anchors, weights, scale = (
        [tensors[i] for i in moved]
        for tensors in (about.parameters, about.anchors, about.weights, about.step.scale)
    )
    states = [about.states[i] for i in moved]
    pull = torch._foreach_sub(parameters, anchors)
    torch._foreach_mul_(pull, weights)
    means = [state["exp_avg"].to(one.dtype) for state, one in zip(states, pull, strict=True)]
    corrections = _bias_corrections(float(group["betas"][0]), states)
    change = torch._foreach_addcdiv(pull, means, scale, [2 * rate / one for one in corrections])
    torch._foreach_mul_(change, pull)
    for one in change:  # at most 0: what does not balance is left as it is; and no root of 0
        one.clamp_(-rate * rate * (1 - 1e-6), 0.0)
    torch._foreach_add_(change, rate**2)
    torch._foreach_sqrt_(change)
    torch._foreach_sub_(change, rate)
    torch._foreach_addcmul_(parameters, parameters, change, value=-decay)


def rmsprop_step_size(
    group: Group, parameters: Sequence[Tensor], states: Sequence[State]
) -> StepSize:
    """η = lr / (√v + ε), centered lr / (√(v − ḡ²) + ε), each over 1 − μ with momentum μ."""
    squares = moments("square_avg", parameters, states)
    if group["centered"]:
        means = moments("grad_avg", parameters, states)
        squares = list(torch._foreach_addcmul(squares, means, means, value=-1.0))
    scale = _roots(squares)
    torch._foreach_add_(scale, max(group["eps"], SMALLEST_EPS))
    return StepSize(float(group["lr"]) / _one_minus(float(group["momentum"])), scale)


def keep_deviation(group: Group, about: Pulled) -> None:
    """Keep the deviation √(v − ḡ²) that centered RMSprop divides by at a tenth of |ḡ| or more.

    The pull balances a gradient that stays the same, and the deviation of such a gradient vanishes
    unless it is noisy: steps would grow without bound, and NaN when rounding gives less than zero.
    """
    if group["centered"]:
        means = moments("grad_avg", about.parameters, about.states)
        least = torch._foreach_mul(means, means)
        torch._foreach_mul_(least, 1 + DEVIATION**2)
        squares = moments("square_avg", about.parameters, about.states)
        torch._foreach_maximum_(squares, least)


_RULES: dict[Callable[..., Any], StepSizeRule] = {
    inspect.unwrap(SGD.step): sgd_step_size,
    inspect.unwrap(Adam.step): adam_step_size,
    inspect.unwrap(RMSprop.step): rmsprop_step_size,
}
CORRECTIONS: dict[StepSizeRule, Correction] = {
    adam_step_size: spare_decay,
    rmsprop_step_size: keep_deviation,
}


def stable_below(optimizer: Optimizer, group: Group) -> float:
    """Return the lr · λ · P from which on an explicit pull overshoots ever further.

    That is 2 for SGD, 2 (1 + μ) / (1 − d) with momentum μ and dampening d, and with Nesterov's
    2 (1 + μ) / (1 + 2μ). Others divide by the size of the gradient, or are not known.
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


def held_groups(optimizer: Optimizer, held: Held) -> Iterator[tuple[int, Group, list[str]]]:
    """The optimizer's groups that the well holds parameters of: index, group, their names."""
    names = {
        id(held.parameters[name]): name
        for name in held.well.precision
        if held.parameters[name].requires_grad
    }
    for index, group in enumerate(optimizer.param_groups):
        if held_here := [names[id(p)] for p in group["params"] if id(p) in names]:
            yield index, group, held_here


def moments(key: str, parameters: Sequence[Tensor], states: Sequence[State]) -> list[Tensor]:
    """The optimizer's moments; zero, as in the optimizer, for a weight that was never stepped."""
    return [
        state[key] if state else torch.zeros_like(parameter)
        for parameter, state in zip(parameters, states, strict=True)
    ]


def _one_minus(momentum: float) -> float:
    if momentum >= 1:
        raise ValueError(f"expected momentum < 1 for how='proximal', got {momentum}")
    return 1 - momentum


def _bias_corrections(beta: float, states: Sequence[State]) -> list[float]:
    return [1 - beta ** float(state["step"]) if state else 1.0 for state in states]


def _roots(moments: Sequence[Tensor]) -> list[Tensor]:
    # On CPUs the root of zero, the moment of a dead unit's weights, takes six times as long.
    return [
        moment.to(torch.promote_types(moment.dtype, torch.float32)).clamp_min(TINY).sqrt_()
        for moment in moments
    ]
