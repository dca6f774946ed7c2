"""The steps of SGD, with momentum or without."""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import SGD, Optimizer

from ewc.step_size.step import ParamGroup, ParamState, StepSize, one_minus


def sgd_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr; with momentum μ and dampening d, lr (1 − d) / (1 − μ), with Nesterov or without.

    A constant gradient moves the weight by that much per step, once the momentum buffer is full.
    """
    momentum = float(group["momentum"])
    if momentum == 0:
        return StepSize(float(group["lr"]))
    return StepSize(float(group["lr"]) * (1 - group["dampening"]) / one_minus(momentum))


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
