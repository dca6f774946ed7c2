"""The steps of RMSprop and of Adagrad, which divide by squared gradients without their bias."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ewc.blocks import Block
from ewc.step_size.step import ParamGroup, ParamState, StepSize, eps_of, moments, one_minus

DEVIATION = 0.1  # smallest deviation of gradients in centered RMSprop, relative to their mean


def rmsprop_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr / (√v + ε), centered lr / (√(v − ḡ²) + ε), each over 1 − μ with momentum μ."""
    squares = moments("square_avg", parameters, states)
    if group["centered"]:
        means = moments("grad_avg", parameters, states)
        squares = list(torch._foreach_addcmul(squares, means, means, value=-1.0))
    return StepSize(
        float(group["lr"]) / one_minus(float(group["momentum"])), squares, eps_of(group)
    )


def bound_deviation(
    group: ParamGroup, block: Block, step: StepSize, scale: list[Tensor], weights: list[Tensor]
) -> None:
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


def adagrad_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr / (1 + (t − 1) · lr_decay) / (√s + ε), with s the sum of all squared gradients.

    At the rest point the gradient of the loss does not vanish, the pull balances it: s keeps
    growing, and η falls as 1 / √t. The rest point does not depend on η.
    """
    rate, decay = float(group["lr"]), float(group["lr_decay"])
    sums = moments("sum", parameters, states)
    slower = [1 + max(float(state["step"]) - 1, 0.0) * decay if state else 1.0 for state in states]
    if all(one == slower[0] for one in slower):
        return StepSize(rate / slower[0], sums, eps_of(group))
    scale = StepSize(rate, sums, eps_of(group)).rooted().scale
    assert scale is not None
    torch._foreach_mul_(scale, slower)
    return StepSize(rate, scale)
