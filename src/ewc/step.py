"""The pull of a well on the weights, taken at every step of an optimizer through its step hooks.

Proximal: after the optimizer's own step the pull is taken implicitly, θ ← (θ + ηλP m) / (1 + ηλP),
which is stable for every λ. The fixed point is the minimum of loss + λ/2 Σ P (θ − m)² when η is the
step that the optimizer takes for the weight in the long run: update = η · gradient. That is known
for the optimizers below. Gradient: λP(θ − m) is added to the gradient, for any optimizer.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, RMSprop

from ewc.wells import Well, energy

How = Literal["proximal", "gradient"]
TINY = 1e-36  # a moment so small is as good as zero: its root is far below any eps in use
SMALLEST_EPS = 1e-30  # with eps=0 a weight that never had a gradient would be pulled by 0 / 0
Group = Mapping[str, Any]
State = Mapping[str, Tensor]


class Held(NamedTuple):
    """What pulls at this moment: the model's parameters by name, their well, and λ."""

    parameters: Mapping[str, nn.Parameter]
    well: Well
    strength: float

    def penalty(self) -> Tensor:
        """Return (λ / 2) times the energy of the well."""
        return self.strength / 2 * energy(self.well, self.parameters)


class StepSize(NamedTuple):
    """η = rate / scale for each weight; without scale, the same η for all."""

    rate: float
    scale: list[Tensor] | None = None


StepSizeRule = Callable[[Group, Sequence[Tensor], Sequence[State]], StepSize]


class Pull:
    """A memory's pull on one optimizer: the handle that `EWC.attach` returns."""

    def __init__(self, optimizer: Optimizer, how: How, held: Callable[[], Held]) -> None:
        self._held = held
        self._cache: dict[int, _Cached] = {}
        if how == "proximal":
            self._step_size = step_size_rule(optimizer)
            self._hook = optimizer.register_step_post_hook(self._after_step)
        elif how == "gradient":
            self._hook = optimizer.register_step_pre_hook(self._before_step)
        else:
            raise ValueError(f"expected how='proximal' or how='gradient', got how={how!r}")
        self.attached = True

    def remove(self) -> None:
        """Stop pulling. Removing twice is harmless."""
        self._hook.remove()
        self.attached = False

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        held = self._held()
        if held.strength == 0 or _skipped(optimizer):
            return
        for index, group, names in _held_groups(optimizer, held):
            parameters: list[Tensor] = [held.parameters[name] for name in names]
            states = [optimizer.state.get(parameter, {}) for parameter in parameters]
            step = self._step_size(group, parameters, states)
            if step.rate > 0:
                weights = self._pull_weights(index, names, held, step)
                _lerp_(parameters, [held.well.anchor[name] for name in names], weights)

    def _pull_weights(
        self, index: int, names: list[str], held: Held, step: StepSize
    ) -> list[Tensor]:
        """`pull_weights` of a group; what stays the same from step to step is computed once."""
        key = (names, step.rate * held.strength)
        cached = self._cache.get(index)
        if cached is None or cached.well is not held.well or cached.key != key:
            fixed = stiffness([held.well.precision[name] for name in names], key[1])
            if step.scale is None:
                fixed = pull_weights(fixed, 1.0)
            self._cache[index] = cached = _Cached(held.well, key, fixed)
        return cached.fixed if step.scale is None else pull_weights(cached.fixed, step.scale)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add_to_gradients(optimizer)
            return None

        def pulled_closure() -> Any:
            # The closure makes the gradients anew, and line searches need the whole objective.
            loss = closure()
            held = self._add_to_gradients(optimizer)
            with torch.no_grad():
                return loss if loss is None else loss + held.penalty()

        return args[:1], {**kwargs, "closure": pulled_closure}

    @torch.no_grad()
    def _add_to_gradients(self, optimizer: Optimizer) -> Held:
        held = self._held()
        if held.strength == 0:
            return held
        for _, group, names in _held_groups(optimizer, held):
            # Still to come: the division by a GradScaler's scale if fused, the sign if maximizing.
            scale = getattr(optimizer, "grad_scale", None)
            factor = held.strength * (1.0 if scale is None else float(scale))
            factor = -factor if group.get("maximize", False) else factor
            for name in names:
                parameter, anchor = held.parameters[name], held.well.anchor[name]
                gradient = factor * held.well.precision[name] * (parameter - anchor)
                gradient = gradient.to(parameter.dtype)
                if parameter.grad is None:
                    parameter.grad = gradient
                elif parameter.grad.is_sparse:
                    parameter.grad.add_(gradient.to_sparse(parameter.grad.sparse_dim()))
                else:
                    parameter.grad.add_(gradient)
        return held


class _Cached(NamedTuple):
    well: Well
    key: tuple[list[str], float]
    fixed: list[Tensor]


def stiffness(precisions: list[Tensor], factor: float) -> list[Tensor]:
    """Return K = factor · P, kept finite: beyond 1e30 a pull is as rigid as it can be."""
    return list(torch._foreach_clamp_max(torch._foreach_mul(precisions, min(factor, 1e30)), 1e30))


def pull_weights(stiffness: list[Tensor], scale: list[Tensor] | float) -> list[Tensor]:
    """Return w = ηλP / (1 + ηλP) = K / (K + scale), for the pull θ ← θ + w (m − θ).

    K is rate · λ · P and η = rate / scale, see `StepSize`.
    """
    return list(torch._foreach_div(stiffness, torch._foreach_add(stiffness, scale)))


def step_size_rule(optimizer: Optimizer) -> StepSizeRule:
    """Return the function that knows the steps of this optimizer, or raise.

    A subclass counts as its parent as long as it does not bring a `step` of its own. An optimizer
    of one's own can say itself what its steps are, with a method `step_size` that takes what the
    rules below take.
    """
    own: StepSizeRule | None = getattr(optimizer, "step_size", None)
    if own is not None:
        return own
    for step, rule in _RULES.items():
        if inspect.unwrap(type(optimizer).step) is inspect.unwrap(step):
            return rule
    raise ValueError(
        "how='proximal' knows the steps of SGD, Adam, AdamW and RMSprop, not those of "
        f"{type(optimizer).__name__}; use attach(optimizer, how='gradient'), "
        "or give it a method step_size(group, parameters, states) -> ewc.step.StepSize"
    )


def sgd_step_size(group: Group, parameters: Sequence[Tensor], states: Sequence[State]) -> StepSize:
    """η = lr; with momentum μ and dampening d, lr (1 − d) / (1 − μ), Nesterov or not.

    A gradient that stays the same moves the weight by that much a step once the buffer is full.
    """
    momentum = float(group["momentum"])
    if momentum == 0:
        return StepSize(float(group["lr"]))
    return StepSize(float(group["lr"]) * (1 - group["dampening"]) / _one_minus(momentum))


def adam_step_size(group: Group, parameters: Sequence[Tensor], states: Sequence[State]) -> StepSize:
    """η = lr / (√v̂ + ε), with v̂ the bias-corrected second moment (its maximum with amsgrad)."""
    key = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
    beta = float(group["betas"][1])
    scale = _roots(moments(key, parameters, states))
    corrections = [1 - beta ** float(state["step"]) if state else 1.0 for state in states]
    torch._foreach_mul_(scale, [correction**-0.5 for correction in corrections])
    torch._foreach_add_(scale, max(group["eps"], SMALLEST_EPS))
    return StepSize(float(group["lr"]), scale)


def rmsprop_step_size(
    group: Group, parameters: Sequence[Tensor], states: Sequence[State]
) -> StepSize:
    """η = lr / (√v + ε), centered lr / (√(v − ḡ²) + ε), each over 1 − μ with momentum μ."""
    squares = moments("square_avg", parameters, states)
    if group["centered"]:
        means = moments("grad_avg", parameters, states)
        squares = list(torch._foreach_addcmul(squares, means, means, value=-1.0))
        torch._foreach_clamp_min_(squares, 0.0)
    scale = _roots(squares)
    torch._foreach_add_(scale, max(group["eps"], SMALLEST_EPS))
    return StepSize(float(group["lr"]) / _one_minus(float(group["momentum"])), scale)


_RULES: dict[Callable[..., Any], StepSizeRule] = {
    SGD.step: sgd_step_size,
    Adam.step: adam_step_size,
    RMSprop.step: rmsprop_step_size,
}


def _one_minus(momentum: float) -> float:
    if momentum >= 1:
        raise ValueError(f"expected momentum < 1 for how='proximal', got {momentum}")
    return 1 - momentum


def moments(key: str, parameters: Sequence[Tensor], states: Sequence[State]) -> list[Tensor]:
    """The optimizer's moments; zero, as in the optimizer, for a weight that was never stepped."""
    return [
        state[key] if state else torch.zeros_like(parameter)
        for parameter, state in zip(parameters, states, strict=True)
    ]


def _roots(moments: Sequence[Tensor]) -> list[Tensor]:
    # On CPUs the root of zero, the moment of a dead unit's weights, takes six times as long.
    return [
        moment.to(torch.promote_types(moment.dtype, torch.float32)).clamp_min(TINY).sqrt_()
        for moment in moments
    ]


def _held_groups(optimizer: Optimizer, held: Held) -> Iterator[tuple[int, Group, list[str]]]:
    """The optimizer's groups that the well holds parameters of: index, group, their names."""
    names = {
        id(held.parameters[name]): name
        for name in held.well.precision
        if held.parameters[name].requires_grad
    }
    for index, group in enumerate(optimizer.param_groups):
        if held_here := [names[id(p)] for p in group["params"] if id(p) in names]:
            yield index, group, held_here


def _skipped(optimizer: Optimizer) -> bool:
    """Whether a GradScaler let a fused optimizer do nothing in this step."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def _lerp_(parameters: list[Tensor], anchors: list[Tensor], weights: list[Tensor]) -> None:
    """θ ← θ + w (m − θ), computed in the anchors' type."""
    pairs = list(zip(parameters, anchors, strict=True))
    targets = [p if p.dtype == anchor.dtype else p.to(anchor.dtype) for p, anchor in pairs]
    torch._foreach_lerp_(targets, anchors, weights)
    for parameter, target in zip(parameters, targets, strict=True):
        if target is not parameter:
            parameter.copy_(target)
