"""The steps of Adam, AdamW, NAdam and RAdam."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ewc.step_size.step import (
    ParamGroup,
    ParamState,
    StepSize,
    bias_corrections,
    device_steps,
    eps_of,
    moments,
    on_cpu,
)


def adam_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr / (√v̂ + ε), with v̂ = v / c the bias-corrected second moment.

    With amsgrad v is its maximum. Where all parameters have taken as many steps, η is computed as
    lr √c / (√v + ε √c), which is one operation less.
    """
    key = "max_exp_avg_sq" if group.get("amsgrad", False) else "exp_avg_sq"
    squares = moments(key, parameters, states)
    rate, eps = float(group["lr"]), eps_of(group)
    corrections = bias_corrections(float(group["betas"][1]), states)
    if isinstance(first := corrections[0], float) and all(one == first for one in corrections):
        return StepSize(rate * first**0.5, squares, eps * first**0.5)
    return StepSize(rate, list(torch._foreach_div(squares, corrections)), eps).rooted()


def nadam_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η of Adam, times what NAdam's weights of gradient and momentum add up to.

    For a gradient that stays the same the update has it 1 − μ_t times, and in the momentum
    μ_{t+1} times, each with a correction of its bias. In the long run that is one.
    """
    step = adam_step_size(group, parameters, states)
    factors = _look_ahead(group, states)
    if step.eps is not None and isinstance(factors[0], float):
        return StepSize(step.rate * factors[0], step.scale, step.eps, factors)
    scale = step.rooted().scale
    assert scale is not None
    scale = [one / factor for one, factor in zip(scale, factors, strict=True)]
    return StepSize(step.rate, scale, gains=factors)


def _look_ahead(group: ParamGroup, states: Sequence[ParamState]) -> list[Any]:
    """Return the factors, as tensors where the step counts are on a device."""
    read: Callable[[Tensor], Any] = float if on_cpu(states) else torch.Tensor.float
    beta, decay = float(group["betas"][0]), float(group["momentum_decay"])
    factors = []
    for state in states:
        if not state:
            factors.append(1.0)
            continue
        count, product = read(state["step"]), read(state["mu_product"])
        now, then = (beta * (1 - 0.96 ** (t * decay) / 2) for t in (count, count + 1))
        momentum = then * (1 - beta**count) / (1 - product * then)
        factors.append((1 - now) / (1 - product) + momentum)
    return factors


def radam_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr · r √c / (√v + ε), with r the rectification, which grows to 1.

    In the first few steps, where the rectification is not defined, RAdam does not divide: η = lr.
    """
    rate, beta = float(group["lr"]), float(group["betas"][1])
    squares = moments("exp_avg_sq", parameters, states)
    factors = rectifications(beta, states)
    corrections: list[Any] = [*bias_corrections(beta, states)]
    gains = [factor / one**0.5 for factor, one in zip(factors, corrections, strict=True)]
    first = factors[0]
    if isinstance(first, float) and all(one == first for one in factors):
        divided = StepSize(rate * first, squares, eps_of(group), gains)
        return divided if first > 0 else StepSize(rate)
    adaptive = StepSize(rate, squares, eps_of(group)).rooted().scale
    assert adaptive is not None
    scale = []
    for one, factor in zip(adaptive, factors, strict=True):
        factor = torch.as_tensor(factor, dtype=one.dtype, device=one.device)
        scale.append(torch.where(factor > 0, one / factor, 1.0))
    return StepSize(rate, scale, gains=gains)


def rectifications(beta: float, states: Sequence[ParamState]) -> list[float] | list[Tensor]:
    """Return r √c of each parameter, and 0 where RAdam does not divide by the second moment.

    ρ is the length of the average that v is an estimate from. They are tensors where the step
    counts are on a device, so that no step waits for it.
    """
    longest = 2 / (1 - beta) - 1
    if on_cpu(states):
        steps = [float(state["step"]) if state else 1.0 for state in states]
        return [_rectification(beta, longest, step) for step in steps]
    found = []
    for step in device_steps(states):
        correction = 1 - beta**step
        length = longest - 2 * step * beta**step / correction
        root = (_variance_ratio(length, longest) * correction).clamp_min(0.0).sqrt()
        found.append(torch.where(length > 5, root, 0.0))
    return found


def _rectification(beta: float, longest: float, step: float) -> float:
    correction = 1 - beta**step
    length = longest - 2 * step * beta**step / correction
    return float(_variance_ratio(length, longest) * correction) ** 0.5 if length > 5 else 0.0


def _variance_ratio(length: float | Tensor, longest: float) -> float | Tensor:
    """Return r², equation 9 of Liu et al. 2020 (arXiv 1908.03265)."""
    return (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
