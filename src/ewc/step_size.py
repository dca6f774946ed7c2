"""The step size η of each optimizer, which the pull needs: what an optimizer makes of a gradient.

A rule reads η of some weights from the optimizer's group and state; `_RULES` has one per optimizer.
A correction (`CORRECTIONS`) lets weight decay count as it would with the penalty in the loss.
Weights come in blocks that fit the cache.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import (
    ASGD,
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

from ewc.distributed.shards import is_sharded, shard_values
from ewc.parameters import at_least_float32, widened

ParamState = Mapping[str, Any]  # what `optimizer.state` has for one parameter

CPU_BLOCK = 2**18  # elements per thread: a megabyte of each tensor
DEVICE_BLOCK = 2**24  # on other devices, where a block costs some ten kernel launches


class Block(NamedTuple):
    """Pieces of parameters, and the same pieces of what belongs to them.

    Attributes:
        parameters: θ, as views that can be changed in place.
        gradients: whether each has a gradient, so that the optimizer moved it.
        states: the optimizer's state of each.
        precisions: P of each.
        anchors: m of each.
    """

    parameters: list[Tensor]
    gradients: list[bool]
    states: list[ParamState]
    precisions: list[Tensor]
    anchors: list[Tensor]

    def only(self, chosen: Sequence[int]) -> "Block":
        """Return the block with the chosen entries alone."""
        picked: Any = ([entries[index] for index in chosen] for entries in self)
        return Block(*picked)

    def cut(self, *, whole: bool = False) -> Iterator["Block"]:
        """Yield this in blocks that fit the cache, small parameters together.

        What is not larger than two blocks is yielded as it is.

        Args:
            whole: do not cut any parameter.
        """
        size = block_size(self.parameters[0].device) if self.parameters else 0
        if sum([parameter.numel() for parameter in self.parameters]) <= 2 * size:
            if self.parameters:
                yield self
            return
        cut: list[tuple[Any, ...]] = []
        elements = 0
        for row in zip(*self, strict=True):
            for piece in [row] if whole else _cut_row(*row, size):
                if elements + piece[0].numel() > size and elements > 0:
                    yield Block(*map(list, zip(*cut, strict=True)))
                    cut, elements = [], 0
                cut.append(piece)
                elements += piece[0].numel()
        if cut:
            yield Block(*map(list, zip(*cut, strict=True)))


def block_size(device: torch.device) -> int:
    """Return how many elements a block should have: each thread works on its part of a block."""
    return CPU_BLOCK * torch.get_num_threads() if device.type == "cpu" else DEVICE_BLOCK


def _cut_row(
    parameter: Tensor,
    gradient: bool,
    state: ParamState,
    precision: Tensor,
    anchor: Tensor,
    size: int,
) -> Iterator[tuple[Tensor, bool, ParamState, Tensor, Tensor]]:
    for (part, p, m), part_state in pieces([parameter, precision, anchor], state, size):
        yield part, gradient, part_state, p, m


def pieces(
    tensors: Sequence[Tensor], state: ParamState, size: int
) -> Iterator[tuple[Sequence[Tensor], ParamState]]:
    """Cut tensors of one shape along the first dimension, which gives views for all strides.

    Args:
        tensors: a parameter, and what has its shape.
        state: the optimizer's state of the parameter, which is cut with it.
        size: how many elements a piece should have.
    """
    parameter = tensors[0]
    if parameter.numel() <= size:
        yield tensors, state
        return
    rows = parameter.shape[0]
    step = max(1, size * rows // parameter.numel())
    for start in range(0, rows, step):
        count = min(step, rows - start)
        part_state = {
            key: value.narrow(0, start, count)
            if isinstance(value, Tensor) and value.shape == parameter.shape
            else value
            for key, value in state.items()
        }
        yield [tensor.narrow(0, start, count) for tensor in tensors], part_state


How = Literal["proximal", "gradient"]
STIFF = 1e-18  # a `half_pull_precision` below which the denominator may vanish where P = 0
TINY = 1e-36  # a moment this small counts as zero: its root is far below any eps in use
SMALLEST_EPS = 1e-18  # with eps=0 a weight that never had a gradient would be pulled by 0 / 0
ParamGroup = Mapping[str, Any]  # one of `optimizer.param_groups`


class StepSize(NamedTuple):
    """η = rate / scale for each weight; without scale, the same η for all.

    If eps is given, scale has squares, as they are in the optimizer: η = rate / (√scale + eps).
    `gains` has η √v̂ / lr of each parameter, with v̂ the second moment, where that is not 1: how far
    a gradient that stays the same moves its weights, in units of lr.
    """

    rate: float
    scale: list[Tensor] | None = None
    eps: float | None = None
    gains: list[float] | list[Tensor] | None = None

    def half_pull_precision(self, strength: float) -> float:
        """Return 1 / (rate · λ): times the scale, the precision that is pulled halfway.

        It is at most 1e38, which is still a number in float32.
        """
        return 1 / max(self.rate * strength, 1e-38)

    def rooted(self) -> "StepSize":
        """Return the same step size with the scale itself instead of its squares."""
        if self.scale is None or self.eps is None:
            return self
        # On CPUs the root of zero, the moment of a dead unit's weights, takes six times as long.
        scale = [widened(square).clamp_min(TINY).sqrt_() for square in self.scale]
        torch._foreach_add_(scale, self.eps)
        return StepSize(self.rate, scale, gains=self.gains)


StepSizeRule = Callable[[ParamGroup, Sequence[Tensor], Sequence[ParamState]], StepSize]
# What else to do before the pull, from the step size, its rooted scale and the weights of the pull.
Correction = Callable[[ParamGroup, Block, StepSize, list[Tensor], list[Tensor]], None]


def moments(key: str, parameters: Sequence[Tensor], states: Sequence[ParamState]) -> list[Tensor]:
    """Return the optimizer's moments; zero, as in the optimizer, before the first step."""
    return [
        state[key] if state else torch.zeros_like(parameter)
        for parameter, state in zip(parameters, states, strict=True)
    ]


def one_minus(momentum: float) -> float:
    """Return 1 − μ; raise if that is not positive."""
    if momentum >= 1:
        raise ValueError(f"expected momentum < 1 for how='proximal', got {momentum}")
    return 1 - momentum


def bias_corrections(beta: float, states: Sequence[ParamState]) -> list[float] | list[Tensor]:
    """Return 1 − β^t of each parameter, t being its number of steps.

    These are numbers if all t are in the memory of the CPU, where reading them is free. Otherwise
    they are tensors, so that no step waits for the device; a first step that was skipped counts.
    """
    if on_cpu(states):
        return [1 - beta ** float(state["step"]) if state else 1.0 for state in states]
    powers = torch._foreach_mul(device_steps(states), math.log(max(beta, TINY)))
    torch._foreach_expm1_(powers)
    torch._foreach_neg_(powers)
    return list(powers)


def on_cpu(states: Sequence[ParamState]) -> bool:
    """Whether all step counts can be read without waiting for a device."""
    steps = (state["step"] for state in states if state)
    return all(not isinstance(step, Tensor) or step.device.type == "cpu" for step in steps)


def device_steps(states: Sequence[ParamState]) -> list[Tensor]:
    """Return the step counts, which are on a device, at least 1."""
    some = next(state["step"] for state in states if state)
    steps = [state["step"].float() if state else torch.ones_like(some) for state in states]
    return list(torch._foreach_clamp_min(steps, 1.0))


def eps_of(group: ParamGroup) -> float:
    """Return the ε of the optimizer, and a very small one instead of zero."""
    return max(float(group["eps"]), SMALLEST_EPS)


GAIN = "ewc.momentum_gain"  # in a parameter's state, where its momentum changed: η / lr


def state_with_gain(
    optimizer: Optimizer, parameter: Tensor, gains: Mapping[int, float]
) -> ParamState:
    """Return what an optimizer has for a parameter, this rank's shard of it, and its gain.

    Args:
        optimizer: the optimizer.
        parameter: the parameter, by which the optimizer knows its state.
        gains: those of `MomentumGains`, by `id` of the parameter.
    """
    state = shard_values(optimizer.state.get(parameter, {}))
    if state and id(parameter) in gains:
        return {**state, GAIN: gains[id(parameter)]}
    return state


def sgd_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr; with momentum μ and dampening d, lr (1 − d) / (1 − μ), with Nesterov or without.

    A constant gradient moves the weight by that much per step, once the momentum buffer is full.
    While the momentum changes it is another number, see `MomentumGains`.
    """
    momentum, rate = float(group["momentum"]), float(group["lr"])
    if momentum == 0:
        return StepSize(rate)
    steady = StepSize(rate * (1 - group["dampening"]) / one_minus(momentum))
    return with_gains(steady, rate, parameters, states)


def with_gains(
    steady: StepSize, lr: float, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """Return a step size with the gains of `MomentumGains` where there are some.

    Args:
        steady: the step size of a momentum that never changed.
        lr: the learning rate.
        parameters: the parameters of the block.
        states: their states, which have the gains.
    """
    if not any(GAIN in state for state in states):
        return steady
    rates = [lr * state[GAIN] if GAIN in state else steady.rate for state in states]
    largest = max(rates)
    if min(rates) == largest or largest <= 0:
        return steady._replace(rate=largest)
    # Parameters without a gradient at some of the steps: each has a rate of its own.
    ratios = [largest / rate if rate > 0 else math.inf for rate in rates]
    scale = steady.rooted().scale
    if scale is None:
        scale = [
            torch.ones((), dtype=at_least_float32(p.dtype), device=p.device).expand(p.shape)
            for p in parameters
        ]
    return StepSize(largest, list(torch._foreach_mul(scale, ratios)))


class MomentumGains:
    """How much of a gradient that stays the same each momentum buffer has, while μ changes.

    A buffer of SGD is b ← μ b + (1 − d) g, so it has the gradient b_t = μ_t b_{t−1} + 1 − d_t
    times, and the step is lr · b_t, with Nesterov lr (1 + μ_t b_t). With a constant momentum b is
    (1 − d) / (1 − μ) in the long run, which is what the rules use from the first step on. A
    schedule that cycles the momentum (`OneCycleLR`, `CyclicLR`) changes μ, while the buffer still
    has what was summed with those before: then b is followed step by step, for each parameter,
    because a step without a gradient leaves its buffer as it is.

    It is assumed that the momentum was constant before the first step that is seen here. The error
    of that falls as the buffer forgets.
    """

    def __init__(self) -> None:
        self._settings: list[tuple[float, float]] = []  # μ and d of each group at its last step
        self._sums: list[list[float]] = []  # b of its parameters, empty where all are steady

    def follow(self, optimizer: Optimizer) -> dict[int, float]:
        """Follow a step that was just taken; return η / lr by the ids of parameters.

        Parameters whose buffers are those of a constant momentum are not in it.
        """
        gains: dict[int, float] = {}
        for number, group in enumerate(optimizer.param_groups):
            now = (float(group["momentum"]), float(group.get("dampening", 0.0)))
            if number == len(self._settings):
                self._settings.append(now)
                self._sums.append([])
            if now == self._settings[number] and not self._sums[number]:
                continue
            if 0 < now[0] < 1:  # without momentum buffers stay as they are, and η = lr
                gains |= self._follow(number, group, *now)
        return gains

    def _follow(
        self, number: int, group: ParamGroup, momentum: float, dampening: float
    ) -> dict[int, float]:
        before, parameters = self._settings[number], group["params"]
        sums = self._sums[number]
        sums += [_steady(*before)] * (len(parameters) - len(sums))
        steady = _steady(momentum, dampening)
        for index, parameter in enumerate(parameters):
            if parameter.grad is not None:
                total = momentum * sums[index] + 1 - dampening
                sums[index] = steady if abs(total - steady) <= 1e-12 * steady else total
        self._settings[number] = (momentum, dampening)
        if all(total == steady for total in sums):
            sums.clear()
        gains = [1 + momentum * total for total in sums] if group.get("nesterov") else sums
        return {id(p): gain for p, gain in zip(parameters, gains, strict=False)}


def _steady(momentum: float, dampening: float) -> float:
    """Return b in the long run; 0 without momentum, where there is no buffer."""
    return (1 - dampening) / (1 - momentum) if 0 < momentum < 1 else 0.0


def stability_limit(optimizer: Optimizer, group: ParamGroup) -> float:
    """Return the lr · λ · P above which a pull through the gradient diverges.

    That is 2 for SGD, 2 (1 + μ) / (1 − d) with momentum μ and dampening d, and
    2 (1 + μ) / (1 + 2μ) with Nesterov; for ASGD 2 less its own decay, lr · lambd. It is infinite
    for other optimizers, which divide by the size of the gradient or are not known.
    """
    if isinstance(optimizer, ASGD):
        return 2 - float(group["lr"]) * float(group["lambd"])
    if not isinstance(optimizer, SGD):
        return math.inf
    momentum = float(group["momentum"])
    if momentum == 0:
        return 2.0
    if group["nesterov"]:
        return 2 * (1 + momentum) / (1 + 2 * momentum)
    remainder = 1 - float(group["dampening"])
    return 2 * (1 + momentum) / remainder if remainder > 0 else math.inf


def explicit_rate(optimizer: Optimizer, group: ParamGroup, parameter: Tensor) -> float | Tensor:
    """Return the lr of a parameter that `stability_limit` is about; that of ASGD falls."""
    if isinstance(optimizer, ASGD) and "eta" in (state := optimizer.state.get(parameter, {})):
        eta: float | Tensor = state["eta"]
        return eta
    lr: float | Tensor = group["lr"]
    return lr


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
    if isinstance(first := corrections[0], float) and all(c == first for c in corrections):
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
    scale = [tensor / factor for tensor, factor in zip(scale, factors, strict=True)]
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
    gains = [factor / c**0.5 for factor, c in zip(factors, corrections, strict=True)]
    first = factors[0]
    if isinstance(first, float) and all(factor == first for factor in factors):
        divided = StepSize(rate * first, squares, eps_of(group), gains)
        return divided if first > 0 else StepSize(rate)
    adaptive = StepSize(rate, squares, eps_of(group)).rooted().scale
    assert adaptive is not None
    scale = []
    for root, factor in zip(adaptive, factors, strict=True):
        factor = torch.as_tensor(factor, dtype=root.dtype, device=root.device)
        scale.append(torch.where(factor > 0, root / factor, 1.0))
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
    roots = []
    for step in device_steps(states):
        correction = 1 - beta**step
        length = longest - 2 * step * beta**step / correction
        root = (_variance_ratio(length, longest) * correction).clamp_min(0.0).sqrt()
        roots.append(torch.where(length > 5, root, 0.0))
    return roots


def _rectification(beta: float, longest: float, step: float) -> float:
    correction = 1 - beta**step
    length = longest - 2 * step * beta**step / correction
    return float(_variance_ratio(length, longest) * correction) ** 0.5 if length > 5 else 0.0


def _variance_ratio(length: float | Tensor, longest: float) -> float | Tensor:
    """Return r², equation 9 of Liu et al. 2020 (arXiv 1908.03265)."""
    return (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)


DEVIATION = 0.1  # of gradients relative to their mean: with less of it centered RMSprop runs away


def rmsprop_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr / (√v + ε), centered lr / (√(v − ḡ²) + ε), each over 1 − μ with momentum μ.

    While μ changes it is another factor, see `MomentumGains`.
    """
    squares = moments("square_avg", parameters, states)
    if group["centered"]:
        means = moments("grad_avg", parameters, states)
        squares = list(torch._foreach_addcmul(squares, means, means, value=-1.0))
    rate = float(group["lr"])
    steady = StepSize(rate / one_minus(float(group["momentum"])), squares, eps_of(group))
    return with_gains(steady, rate, parameters, states)


def lacks_noise(group: ParamGroup, states: Sequence[ParamState]) -> bool:
    """Whether centered RMSprop divides by next to nothing for most of the weights that it moves.

    The pull balances a constant gradient, and the deviation √(v − ḡ²) of such a gradient vanishes
    unless it is noisy: steps grow without bound, and are NaN where rounding gives less than zero.
    """
    if not group.get("centered", False):
        return False
    moving = vanishing = 0
    for state in states:
        if state:
            squares = state["grad_avg"].square()
            still = state["square_avg"] < squares * (1 + DEVIATION**2)
            moving += int(squares.count_nonzero())
            vanishing += int((still & (squares > 0)).count_nonzero())
    return 2 * vanishing > moving


def adagrad_step_size(
    group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
) -> StepSize:
    """η = lr / (1 + (t − 1) · lr_decay) / (√s + ε), with s the sum of all squared gradients.

    At the fixed point the gradient of the loss does not vanish, the pull balances it: s keeps
    growing, and η falls as 1 / √t. The fixed point does not depend on η.
    """
    rate, decay = float(group["lr"]), float(group["lr_decay"])
    sums = moments("sum", parameters, states)
    slower = [1 + max(float(state["step"]) - 1, 0.0) * decay if state else 1.0 for state in states]
    if all(factor == slower[0] for factor in slower):
        return StepSize(rate / slower[0], sums, eps_of(group))
    scale = StepSize(rate, sums, eps_of(group)).rooted().scale
    assert scale is not None
    torch._foreach_mul_(scale, slower)
    return StepSize(rate, scale)


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
            "how='proximal' cannot be used with the weight decay of Adafactor, whose fixed point "
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
    factors = [2 * step.rate / float(c) for c in corrections]
    lr = float(group["lr"])
    gains: Any = step.gains or [1.0] * len(means)
    # A gain of 0, where RAdam does not divide by v, makes the correction 0 times something finite.
    floors = [g.clamp_min(TINY) if isinstance(g, Tensor) else max(g, TINY) for g in gains]
    decays = [decay / floor for floor in floors]
    return Decay([lr * gain for gain in gains], decays, means, factors)


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
    means = [mean.to(own.dtype) for mean, own in zip(terms.means, pull, strict=True)]
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


_RULES: dict[Callable[..., Any], StepSizeRule] = {
    inspect.unwrap(SGD.step): sgd_step_size,
    inspect.unwrap(Adam.step): adam_step_size,  # AdamW is a subclass that keeps it
    inspect.unwrap(NAdam.step): nadam_step_size,
    inspect.unwrap(RAdam.step): radam_step_size,
    inspect.unwrap(RMSprop.step): rmsprop_step_size,
    inspect.unwrap(Adagrad.step): adagrad_step_size,
    inspect.unwrap(Adafactor.step): adafactor_step_size,
}
CORRECTIONS: dict[StepSizeRule, Correction] = {
    adam_step_size: undo_excess_decay,
    nadam_step_size: undo_excess_decay,
    radam_step_size: undo_excess_decay,
}


def step_size_rule(optimizer: Optimizer) -> StepSizeRule:
    """Return the function that computes the step size of this optimizer, or raise.

    A subclass counts as its parent as long as it does not define a `step` of its own. Your own
    optimizer can define its step size in a method `step_size`, with the arguments of the rules.
    """
    rule = _own_rule(optimizer) or _known_rule(type(optimizer).step)
    if rule is None:
        raise ValueError(
            "how='proximal' knows the steps of SGD, Adam, AdamW, NAdam, RAdam, RMSprop, Adagrad "
            f"and Adafactor of torch.optim, not those of {_full_name(type(optimizer))}; "
            "use attach(optimizer, how='gradient'), in a trainer EWCCallback(memory, "
            "how='gradient'), or give it a method "
            "step_size(group, parameters, states) -> ewc.step_size.StepSize"
        )
    if rule is adafactor_step_size:
        check_adafactor(optimizer)
    return rule


def needs_whole_parameters(optimizer: Optimizer) -> bool:
    """Whether the rule cannot be used on a part of a parameter.

    Adafactor looks at the size of the whole, and the states of a `step_size` of the optimizer's own
    may have any shapes.
    """
    if _own_rule(optimizer) is not None:
        return True
    return step_size_rule(optimizer) is adafactor_step_size


def sums_momentum(optimizer: Optimizer) -> bool:
    """Whether the rule is that of an optimizer whose momentum is a sum: see `MomentumGains`."""
    known = _known_rule(type(optimizer).step)
    return known in (sgd_step_size, rmsprop_step_size) and _own_rule(optimizer) is None


def is_known(optimizer: Optimizer) -> bool:
    """Whether it is one of PyTorch's optimizers that have a rule here."""
    return _known_rule(type(optimizer).step) is not None


@cache
def _known_rule(step: Callable[..., Any]) -> StepSizeRule | None:
    return _RULES.get(inspect.unwrap(step))


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _own_rule(optimizer: Optimizer) -> StepSizeRule | None:
    """Return the optimizer's method `step_size`; an attribute of that name may be a number."""
    own: StepSizeRule | None = getattr(optimizer, "step_size", None)
    return own if callable(own) else None
