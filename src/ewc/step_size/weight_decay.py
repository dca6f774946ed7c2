"""The decoupled weight decay of AdamW, NAdam and RAdam, which does not know of the pull."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ewc.blocks import Block
from ewc.step_size.step import TINY, ParamGroup, StepSize, bias_corrections


class Decay(NamedTuple):
    """What the correction of a weight decay needs.

    Attributes:
        rates: η √v̂, the step for a gradient that stays the same: lr times the gain of the rule.
        decays: the weight decay δ, times lr / rate.
        means: the first moment of each parameter.
        factors: what turns means / scale into 2A, twice the step that the optimizer took.
    """

    rates: list[float] | list[Tensor]
    decays: list[float] | list[Tensor]
    means: list[Tensor]
    factors: list[float]


def decoupled_decay(group: ParamGroup, block: Block, step: StepSize) -> Decay | None:
    """Return the weight decay of a block whose parameters all moved; None if there is none."""
    decay = float(group["weight_decay"])
    if decay == 0 or not group.get("decoupled_weight_decay", False) or step.scale is None:
        return None
    means = [state["exp_avg"] for state in block.states]
    corrections = bias_corrections(float(group["betas"][0]), block.states)
    if isinstance(corrections[0], Tensor):
        means, corrections = list(torch._foreach_div(means, corrections)), [1.0] * len(means)
    factors = [2 * step.rate / float(one) for one in corrections]
    lr = float(group["lr"])
    gains: Any = step.gains or [1.0] * len(means)
    # A gain of 0, where RAdam does not divide by v, makes the correction 0 times something finite.
    floors = [one.clamp_min(TINY) if isinstance(one, Tensor) else max(one, TINY) for one in gains]
    decays = [decay / one for one in floors]
    return Decay([lr * one for one in gains], decays, means, factors)


def undo_excess_decay(
    group: ParamGroup, block: Block, step: StepSize, scale: list[Tensor], weights: list[Tensor]
) -> None:
    """Make the weight decay δ count as much as with the penalty in the loss.

    AdamW comes to rest where gradient + δ (√v + ε) θ = 0, with v the second moment of the whole
    gradient. It saw only v̂, that of the loss, and not the pull, which balances the mean of it. In
    terms of its own step A = lr · ḡ / (√v̂ + ε) and that of the pull D = w (θ − m),

        v / v̂ = 1 + D (2A + D) / lr²

    so it decayed the weight by lr · δ (1 − √(v / v̂)) too much, which is added back.
    """
    moved = [index for index, gradient in enumerate(block.gradients) if gradient]
    block = block.only(moved)
    if step.gains is not None:
        gains: Any = [step.gains[index] for index in moved]
        step = step._replace(gains=gains)
    if not moved or (terms := decoupled_decay(group, block, step)) is None:
        return
    weights, scale = ([tensors[i] for i in moved] for tensors in (weights, scale))
    pull = torch._foreach_sub(block.parameters, block.anchors)
    torch._foreach_mul_(pull, weights)
    means = [mean.to(one.dtype) for mean, one in zip(terms.means, pull, strict=True)]
    change = torch._foreach_addcdiv(pull, means, scale, terms.factors)
    torch._foreach_mul_(change, pull)
    squares: Any = [rate * rate for rate in terms.rates]
    torch._foreach_clamp_max_(change, 0.0)  # at most 0, where the pull balances the gradient
    torch._foreach_add_(change, squares)
    torch._foreach_clamp_min_(change, [1e-6 * square for square in squares])  # no root of 0
    torch._foreach_sqrt_(change)
    torch._foreach_sub_(change, terms.rates)
    torch._foreach_mul_(change, terms.decays)
    torch._foreach_addcmul_(block.parameters, block.parameters, change, value=-1.0)
