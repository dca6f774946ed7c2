"""The proximal pull on a block of parameters, in some ten operations of torch."""

import torch
from torch import Tensor

from ewc.blocks import Block
from ewc.step_size.rules import CORRECTIONS
from ewc.step_size.step import ParamGroup, StepSize, StepSizeRule


def pull_on_block(
    rule: StepSizeRule, group: ParamGroup, block: Block, strength: float, share: float | Tensor
) -> None:
    """Take the proximal step on a block of parameters, after the step of the optimizer.

    Args:
        rule: the step size of the optimizer.
        group: the group that all parameters are of.
        block: the parameters, with all that belongs to them.
        strength: λ.
        share: how much of the pull to take: 0 if the optimizer skipped its step, else 1.
    """
    step = rule(group, block.parameters, block.states)
    if step.rate <= 0:
        return
    rooted = step.rooted()
    weights = pull_weights(block.precisions, rooted, strength)
    if isinstance(share, Tensor):
        torch._foreach_mul_(weights, share)
    if (correct := CORRECTIONS.get(rule)) is not None:
        correct(group, block, step, rooted.scale or [], weights)
    _lerp_(block.parameters, block.anchors, weights)


def pull_weights(precisions: list[Tensor], step: StepSize, strength: float) -> list[Tensor]:
    """Return w = ηλP / (1 + ηλP) for the pull θ ← θ + w (m − θ).

    With η = rate / scale that is P / (P + scale / (rate · λ)).
    """
    softness = step.softness(strength)
    if step.scale is None:
        total = torch._foreach_add(precisions, softness)
    else:
        total = torch._foreach_add(precisions, step.scale, alpha=softness)
    return list(torch._foreach_div(precisions, total))


def _lerp_(parameters: list[Tensor], anchors: list[Tensor], weights: list[Tensor]) -> None:
    """θ ← θ + w (m − θ), computed in the anchors' type."""
    pairs = list(zip(parameters, anchors, strict=True))
    targets = [p if p.dtype == anchor.dtype else p.to(anchor.dtype) for p, anchor in pairs]
    torch._foreach_lerp_(targets, anchors, weights)
    for parameter, target in zip(parameters, targets, strict=True):
        if target is not parameter:
            parameter.copy_(target)
