"""The pull as one compiled kernel, which reads and writes every number once.

The operations of `ewc.pull` are the same, but each of them goes through the numbers of a block. A
compiler makes one loop of them all. The kernels are compiled for all sizes of parameters, and take
all numbers as tensors, so that a learning-rate schedule does not compile them again.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ewc.blocks import Block
from ewc.step_size.rules import CORRECTIONS
from ewc.step_size.step import ParamGroup, StepSizeRule
from ewc.step_size.weight_decay import decoupled_decay, undo_excess_decay

SMALLEST = 2**12  # numbers; calling a kernel takes longer than pulling on fewer of them


def pull_(
    theta: Tensor,
    anchor: Tensor,
    precision: Tensor,
    scale: Tensor | None,
    softness: Tensor,
    eps: Tensor | None,
) -> None:
    """θ ← θ + w (m − θ) with w = P / (P + softness · scale); scale has squares if eps is given."""
    wide = theta.to(anchor.dtype)
    weight = _weight(anchor, precision, _rooted(scale, eps, anchor.dtype), softness)
    theta.copy_(wide + weight * (anchor - wide))


def pull_and_undo_decay_(
    theta: Tensor,
    anchor: Tensor,
    precision: Tensor,
    scale: Tensor,
    mean: Tensor,
    softness: Tensor,
    eps: Tensor | None,
    factor: Tensor,
    rate: Tensor,
    decay: Tensor,
) -> None:
    """The same, after what `undo_excess_decay` does."""
    wide, root = theta.to(anchor.dtype), _rooted(scale, eps, anchor.dtype)
    weight = _weight(anchor, precision, root, softness)
    pull = weight * (wide - anchor)
    change = pull * (pull + factor * mean.to(anchor.dtype) / root)
    # `where` instead of `clamp`, which would take care of NaNs in three more instructions each.
    whole = rate * rate
    rest = torch.where(change < 0, whole + change, whole)
    rest = torch.where(rest > 1e-6 * whole, rest, 1e-6 * whole)
    wide = wide - decay * wide * (rest.sqrt() - rate)
    theta.copy_(wide + weight * (anchor - wide))


def _weight(anchor: Tensor, precision: Tensor, scale: Tensor | float, softness: Tensor) -> Tensor:
    precision = precision.to(anchor.dtype)
    return precision / (precision + softness * scale)


def _rooted(scale: Tensor | None, eps: Tensor | None, dtype: torch.dtype) -> Tensor | float:
    if scale is None:
        return 1.0
    return scale.to(dtype) if eps is None else scale.to(dtype).sqrt() + eps


def pull_compiled(
    rule: StepSizeRule, group: ParamGroup, block: Block, strength: float, share: float | Tensor
) -> Block:
    """Pull on the parameters that the kernels are for, and return the others.

    Args:
        rule: the step size of the optimizer.
        group: the group that all parameters are of.
        block: whole parameters.
        strength: λ.
        share: how much of the pull to take: 0 if the optimizer skipped its step, else 1.
    """
    numbers = Numbers(share)
    others = []
    for index in range(len(block.parameters)):
        one = block.only([index])
        if _is_suited(one):
            _pull_on_one(rule, group, one, strength, numbers)
        else:
            others.append(index)
    return block.only(others)


class Numbers:
    """The numbers of a step as tensors, which most parameters have in common.

    `share` is how much of the pull to take; the first number, its softness, is divided by it.
    """

    def __init__(self, share: float | Tensor) -> None:
        self._share = share
        self._made: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}

    def tensors(self, values: tuple[float | Tensor, ...], like: Tensor) -> tuple[Tensor, ...]:
        """Return one tensor per number, in the type and on the device of another tensor.

        Numbers that a device has computed are tensors already, and are not read.
        """
        known = tuple(0.0 if isinstance(value, Tensor) else value for value in values)
        key = (known, like.dtype, like.device)
        if key not in self._made:
            made = torch.tensor(known, dtype=like.dtype).to(like.device, non_blocking=True)
            made[0] /= self._share
            self._made[key] = made.unbind()
        return tuple(
            value.to(like.dtype) if isinstance(value, Tensor) else one
            for value, one in zip(values, self._made[key], strict=True)
        )


def check_compiler(optimizer: Optimizer) -> None:
    """Raise if kernels cannot be compiled for the parameters of the optimizer."""
    for device in {p.device for group in optimizer.param_groups for p in group["params"]}:
        _check_compiler(device)


def _pull_on_one(
    rule: StepSizeRule, group: ParamGroup, block: Block, strength: float, numbers: Numbers
) -> None:
    """Pull on the one parameter of a block."""
    step = rule(group, block.parameters, block.states)
    if step.rate <= 0:
        return
    correct, decay = CORRECTIONS.get(rule), None
    if correct is undo_excess_decay:
        decay = decoupled_decay(group, block, step)
    elif correct is not None:
        correct(group, block, step, [], [])
    flat = [one.detach().view(-1) for (one,) in (block.parameters, block.anchors, block.precisions)]
    scale = None if step.scale is None else step.scale[0].view(-1)
    values: tuple[float | Tensor, ...] = (step.softness(strength), step.eps or 0.0)
    if decay is not None:
        values = (*values, decay.factors[0], decay.rates[0], decay.decays[0])
    softness, eps, *of_decay = numbers.tensors(values, block.anchors[0])
    least = None if step.eps is None else eps
    if decay is None:
        _compiled(pull_)(*flat, scale, softness, least)
    else:
        mean = decay.means[0].view(-1)
        _compiled(pull_and_undo_decay_)(*flat, scale, mean, softness, least, *of_decay)


def _is_suited(one: Block) -> bool:
    """Whether a parameter is large, just moved, and laid out like all that belongs to it."""
    theta = one.parameters[0]
    if theta.numel() < SMALLEST or not one.gradients[0]:
        return False
    state = [v for v in one.states[0].values() if isinstance(v, Tensor) and v.shape == theta.shape]
    return all(t.is_contiguous() for t in (theta, *one.precisions, *one.anchors, *state))


@cache
def _compiled(kernel: Callable[..., None]) -> Callable[..., None]:
    return torch.compile(kernel, dynamic=True)


@cache
def _check_compiler(device: torch.device) -> None:
    numbers: list[Any] = [torch.ones(SMALLEST, device=device) for _ in range(4)]
    one = torch.ones((), device=device)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Of torch's own modules, which the first compilation imports.
            warnings.simplefilter("ignore", DeprecationWarning)
            _compiled(pull_)(*numbers, one, one)
    except Exception as error:  # of many kinds, from torch, the compiler and the linker
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise RuntimeError(
            f"compiled=True needs a compiler that torch.compile can use on {device.type} "
            "(g++ or clang++ for CPUs, triton for GPUs), and compiling failed: "
            f"{type(error).__name__}: {reason}; install one, or leave compiled=True out"
        ) from error
