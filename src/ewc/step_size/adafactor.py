"""The steps of Adafactor: relative to the size of the parameter, and clipped as a whole.

    θ ← θ − α / c · g / √v,   α = ρ · max(ε₂, rms(θ)),   c = max(1, rms(g / √v) / d)

with v the second moment, factored into rows and columns for matrices, and ρ = min(lr, 1 / √t).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from ewc.dtypes import widened
from ewc.sharding import is_sharded
from ewc.step_size.step import ParamGroup, ParamState, StepSize


def adafactor_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = α / (c √v) of the step just taken. It needs whole parameters, and their gradients."""
    pairs = zip(parameters, states, strict=True)
    return StepSize(1.0, [_scale(group, parameter, state) for parameter, state in pairs])


def check_adafactor(optimizer: Optimizer) -> None:
    """Raise for what the rule does not know of."""
    if any(group["weight_decay"] != 0 for group in optimizer.param_groups):
        raise ValueError(
            "how='proximal' cannot be used with the weight decay of Adafactor, whose rest point "
            "with a pull is not that with the penalty in the loss; use weight_decay=0 or "
            "attach(optimizer, how='gradient')"
        )
    if any(is_sharded(p) for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            "how='proximal' does not know the steps of Adafactor for sharded parameters, which "
            "depend on the size of the whole; use attach(optimizer, how='gradient')"
        )


def _scale(group: ParamGroup, parameter: Tensor, state: ParamState) -> Tensor:
    """Return c √v / α. Without a gradient nothing is clipped."""
    theta = widened(parameter.detach())
    eps = group["eps"][0]
    eps = torch.finfo(parameter.dtype).eps if eps is None else eps
    root = _second_moment(theta, state, eps).clamp_min(eps * eps).sqrt()
    gradient = torch.zeros_like(theta) if parameter.grad is None else widened(parameter.grad)
    update = gradient / root
    clip = (_rms(update) / group["d"]).clamp_min(1.0)
    rho = min(float(group["lr"]), max(float(state["step"]), 1.0) ** -0.5 if state else 1.0)
    sign = -1.0 if group["maximize"] else 1.0
    alpha = _relative_rate(theta, update.mul_(sign / clip), rho).clamp_min(group["eps"][1] * rho)
    scale: Tensor = root * (clip / alpha)
    return scale


def _second_moment(theta: Tensor, state: ParamState, eps: float) -> Tensor:
    if not state:
        return torch.zeros_like(theta)
    if state.get("row_var") is None:
        return widened(state["variance"])
    rows, columns = widened(state["row_var"]), widened(state["col_var"])
    return torch.matmul(rows, columns) / rows.mean(dim=-2, keepdim=True).clamp_min(eps)


def _relative_rate(theta: Tensor, update: Tensor, rho: float) -> Tensor:
    """Return α = ρ · rms(θ₀) of the weights θ₀ before the step, of which θ = θ₀ − α u is known.

    That is the positive root of α² / ρ² = mean((θ + α u)²).
    """
    product, square = (theta * update).mean(), theta.square().mean()
    leading = rho**-2 - update.square().mean() if rho > 0 else theta.new_tensor(torch.inf)
    root = (product + (product.square() + leading * square).sqrt()) / leading
    return torch.where(leading > 0, root, rho * square.sqrt())


def _rms(tensor: Tensor) -> Tensor:
    return tensor.square().mean().sqrt()
