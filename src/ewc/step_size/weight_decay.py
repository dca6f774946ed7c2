"""The decoupled weight decay of AdamW, NAdam and RAdam, which does not know of the pull."""

from typing import NamedTuple

import torch
from torch import Tensor

from ewc.blocks import Block
from ewc.step_size.step import ParamGroup, StepSize, bias_corrections


class Decay(NamedTuple):
    """What the correction of a weight decay needs.

    Attributes:
        rate: η √v̂, the step for a gradient that stays the same: lr, for RAdam times r.
        decay: the weight decay δ, times lr / rate.
        means: the first moment of each parameter.
        factors: what turns means / scale into 2A, twice the step that the optimizer took.
    """

    rate: float
    decay: float
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
    rate = lr = float(group["lr"])
    if step.eps is not None:  # then scale is v = c v̂, and c is the same for all
        rate = step.rate / float(bias_corrections(float(group["betas"][1]), block.states)[0]) ** 0.5
    return Decay(rate, decay * lr / rate, means, factors)


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
    if not moved or (terms := decoupled_decay(group, block, step)) is None:
        return
    weights, scale = ([tensors[i] for i in moved] for tensors in (weights, scale))
    pull = torch._foreach_sub(block.parameters, block.anchors)
    torch._foreach_mul_(pull, weights)
    means = [mean.to(one.dtype) for mean, one in zip(terms.means, pull, strict=True)]
    change = torch._foreach_addcdiv(pull, means, scale, terms.factors)
    torch._foreach_mul_(change, pull)
    square = terms.rate**2
    for one in change:  # at most 0, where the pull balances the gradient; and no root of 0
        one.clamp_(-square * (1 - 1e-6), 0.0)
    torch._foreach_add_(change, square)
    torch._foreach_sqrt_(change)
    torch._foreach_sub_(change, terms.rate)
    torch._foreach_addcmul_(block.parameters, block.parameters, change, value=-terms.decay)
