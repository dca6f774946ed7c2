"""The proximal pull on a block of parameters, in some ten operations of torch."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor
from torch.optim import Optimizer

from ewc.curvature.tasks import PullState
from ewc.distributed.shards import shards
from ewc.step_size import (
    CORRECTIONS,
    STIFF,
    Block,
    ParamGroup,
    StepSize,
    StepSizeRule,
    state_with_gain,
)


def pulled_groups(
    optimizer: Optimizer, state: PullState, names: Iterable[str] | None = None
) -> Iterator[tuple[ParamGroup, list[str]]]:
    """Yield the groups that move protected weights, and the names of these.

    Args:
        optimizer: the optimizer.
        state: what the memory pulls with.
        names: look for these; by default for all that have a diagonal precision.
    """
    by_id: dict[int, list[str]] = {}
    for name in state.well.precision if names is None else names:
        for parameter in state.moved_by(name):
            if parameter.requires_grad:
                by_id.setdefault(id(parameter), []).append(name)
    for group in optimizer.param_groups:
        names_by_parameter = (by_id.get(id(parameter), ()) for parameter in group["params"])
        if in_group := list(dict.fromkeys(chain.from_iterable(names_by_parameter))):
            yield group, in_group


def pulled_blocks(
    optimizer: Optimizer, state: PullState, gains: Mapping[int, float]
) -> Iterator[tuple[ParamGroup, Block]]:
    """Yield each group that has protected parameters, with all of these in one block.

    `gains` are those of `MomentumGains`, which go into the states.
    """
    for group, names in pulled_groups(optimizer, state):
        parameters = shards(state.parameters[name] for name in names)
        block = Block(
            parameters,
            [parameter.grad is not None for parameter in parameters],
            [state_with_gain(optimizer, state.parameters[name], gains) for name in names],
            shards(state.well.precision[name] for name in names),
            shards(state.well.anchor[name] for name in names),
        )
        yield {**group, "lr": float(group["lr"])}, block  # read once, in case it is on a device


KEPT = 2**20  # elements: four megabytes


class KeptWeights:
    """The weights of the last pull on a block, to be used again while nothing changes.

    They are kept if there are few of them and the step size is the same for all, as with SGD.
    """

    def __init__(self) -> None:
        self._pulled: tuple[list[Tensor], float, float] = ([], 0.0, 0.0)
        self._weights: list[Tensor] = []

    def weights(self, precisions: list[Tensor], step: StepSize, strength: float) -> list[Tensor]:
        """Return `pull_weights`, which are not to be changed."""
        if step.scale is not None or sum([p.numel() for p in precisions]) > KEPT:
            return pull_weights(precisions, step, strength)
        before, rate, strength_before = self._pulled
        same = (rate, strength_before, len(before)) == (step.rate, strength, len(precisions))
        if not same or not all(map(operator.is_, before, precisions)):
            self._weights = pull_weights(precisions, step, strength)
            self._pulled = (precisions, step.rate, strength)
        return self._weights


def pull_on_block(
    rule: StepSizeRule,
    group: ParamGroup,
    block: Block,
    strength: float,
    not_skipped: float | Tensor,
    kept: KeptWeights | None = None,
) -> None:
    """Take the proximal step on a block of parameters, after the step of the optimizer.

    Args:
        rule: the step size of the optimizer.
        group: the group that all parameters are of.
        block: the parameters, with all that belongs to them.
        strength: λ.
        not_skipped: what the pull is multiplied by: 0 if the optimizer skipped its step, else 1.
        kept: the weights of the last pull on the same block.
    """
    step = rule(group, block.parameters, block.states)
    if step.rate <= 0:
        return
    rooted = step.rooted()
    if kept is None or isinstance(not_skipped, Tensor):
        weights = pull_weights(block.precisions, rooted, strength)
    else:
        weights = kept.weights(block.precisions, rooted, strength)
    if isinstance(not_skipped, Tensor):
        torch._foreach_mul_(weights, not_skipped)
    if (correct := CORRECTIONS.get(rule)) is not None:
        correct(group, block, step, rooted.scale or [], weights)
    _lerp_(block.parameters, block.anchors, weights)


def pull_weights(precisions: list[Tensor], step: StepSize, strength: float) -> list[Tensor]:
    """Return w = ηλP / (1 + ηλP) for the pull θ ← θ + w (m − θ).

    With η = rate / scale that is P / (P + scale / (rate · λ)), and 0 where P = 0.
    """
    half_pull_precision = step.half_pull_precision(strength)
    if step.scale is None:
        total = torch._foreach_add(precisions, half_pull_precision)
    else:
        total = torch._foreach_add(precisions, step.scale, alpha=half_pull_precision)
    if total[0].device.type == "cpu":  # in place, which keeps more of the block in the cache
        weights = [
            torch.div(p, denominator, out=denominator)
            for p, denominator in zip(precisions, total, strict=True)
        ]
    else:
        weights = list(torch._foreach_div(precisions, total))
    if half_pull_precision < STIFF:
        for weight, precision in zip(weights, precisions, strict=True):
            weight.masked_fill_(precision == 0, 0.0)  # it may be 0 / 0
    return weights


def _lerp_(parameters: list[Tensor], anchors: list[Tensor], weights: list[Tensor]) -> None:
    """θ ← θ + w (m − θ), computed in the anchors' dtype."""
    pairs = list(zip(parameters, anchors, strict=True))
    targets = [p if p.dtype == anchor.dtype else p.to(anchor.dtype) for p, anchor in pairs]
    torch._foreach_lerp_(targets, anchors, weights)
    for parameter, target in zip(parameters, targets, strict=True):
        if target is not parameter:
            parameter.copy_(target)
