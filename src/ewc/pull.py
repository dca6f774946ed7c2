"""The pull of wells on the weights, taken at every step of an optimizer through its step hooks.

Proximal: after the optimizer's own step the pull is taken implicitly, θ ← (θ + ηλP m) / (1 + ηλP),
which is stable for every λ; `ewc.step_size` knows η. Several memories on one optimizer pull in one
such step, with Σ λP for λP and Σ λP m for λP m. Gradient: λP (θ − m) is added to the gradient, for
any optimizer.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from ewc.pull_checks import StrengthWatch
from ewc.step_size import CORRECTIONS, How, Pulled, StepSize, held_groups, step_size_rule
from ewc.wells import Held, Well, joined


class Pull:
    """A memory's pull on one optimizer: the handle that `EWC.attach` returns.

    `held` says what pulls at this moment, `told` what the memory has warned of. A pull that is
    copied or pickled along with its optimizer pulls on the copy.
    """

    how: How
    held: Callable[[], Held]
    told: set[str]
    _shared: "_SharedPull | None"

    def __init__(
        self, optimizer: Optimizer, how: How, held: Callable[[], Held], told: set[str]
    ) -> None:
        if how not in get_args(How):
            raise ValueError(f"expected how='proximal' or how='gradient', got how={how!r}")
        if how == "proximal":
            step_size_rule(optimizer)  # raises for an optimizer that it does not know
        self.__setstate__({"how": how, "held": held, "told": told, "optimizer": optimizer})

    @property
    def attached(self) -> bool:
        """Whether it still pulls."""
        return self._shared is not None

    def remove(self) -> None:
        """Stop pulling. Removing twice is harmless."""
        if self._shared is not None:
            self._shared.remove(self)
        self._shared = None

    def __getstate__(self) -> dict[str, Any]:
        optimizer = None if self._shared is None else self._shared.optimizer()
        return {"how": self.how, "held": self.held, "told": self.told, "optimizer": optimizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.how, self.held, self.told = state["how"], state["held"], state["told"]
        self._shared = None
        if (optimizer := state["optimizer"]) is not None:
            if optimizer not in _SHARED:
                _SHARED[optimizer] = _SharedPull(optimizer)
            self._shared = _SHARED[optimizer]
            self._shared.pulls.append(self)


class _SharedPull:
    """All pulls on one optimizer, which it does not keep alive."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.pulls: list[Pull] = []
        self._watch = StrengthWatch()
        self._joined: dict[How, tuple[list[Held], Held]] = {}
        self._cache: dict[int, _Cached] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def remove(self, pull: Pull) -> None:
        """Let one pull go, and the hooks with the last one."""
        self.pulls.remove(pull)
        if not self.pulls:
            for hook in self._hooks:
                hook.remove()
            if (optimizer := self.optimizer()) is not None:
                del _SHARED[optimizer]

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        held = self._held("proximal")
        if held is None or _skipped(optimizer):
            return
        self._watch.check_implicit(optimizer, held, self.pulls[0].told)
        rule = step_size_rule(optimizer)
        correct = CORRECTIONS.get(rule)
        for index, group, names in held_groups(optimizer, held):
            parameters: list[Tensor] = [held.parameters[name] for name in names]
            states = [optimizer.state.get(parameter, {}) for parameter in parameters]
            step = rule(group, parameters, states)
            if step.rate > 0:
                anchors = [held.well.anchor[name] for name in names]
                fixed = self._fixed(index, names, held, step)
                weights = fixed if step.scale is None else pull_weights(fixed, step.scale)
                if correct is not None:
                    correct(group, Pulled(parameters, states, anchors, weights, step))
                _lerp_(parameters, anchors, weights)

    def _held(self, how: How) -> Held | None:
        """What the pulls of one kind hold together; joined anew when something changed."""
        several = [held for pull in self.pulls if pull.how == how if (held := pull.held()).strength]
        if len(several) < 2:
            return several[0] if several else None
        before = self._joined.get(how)
        if before is None or not _same(before[0], several):
            self._joined[how] = before = (several, joined(several))
        return before[1]

    def _fixed(self, index: int, names: list[str], held: Held, step: StepSize) -> list[Tensor]:
        """What stays the same from step to step, computed once: the pull's weights or stiffness."""
        key = (names, step.rate * held.strength)
        cached = self._cache.get(index)
        if cached is None or cached.well is not held.well or cached.key != key:
            fixed = stiffness([held.well.precision[name] for name in names], key[1])
            if step.scale is None:
                fixed = pull_weights(fixed, 1.0)
            self._cache[index] = cached = _Cached(held.well, key, fixed)
        return cached.fixed

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if not any(pull.how == "gradient" for pull in self.pulls):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add_to_gradients(optimizer)
            return None

        def pulled_closure() -> Any:
            # The closure makes the gradients anew, and line searches need the whole objective.
            loss = closure()
            held = self._add_to_gradients(optimizer)
            with torch.no_grad():
                return loss if loss is None or held is None else loss + held.penalty()

        return args[:1], {**kwargs, "closure": pulled_closure}

    @torch.no_grad()
    def _add_to_gradients(self, optimizer: Optimizer) -> Held | None:
        held = self._held("gradient")
        if held is None:
            return None
        self._watch.check_explicit(optimizer, held, self.pulls[0].told)
        for _, group, names in held_groups(optimizer, held):
            # Still to come: the division by a GradScaler's scale if fused, the sign if maximizing.
            scale = getattr(optimizer, "grad_scale", None)
            factor = held.strength * (1.0 if scale is None else float(scale))
            factor = -factor if group.get("maximize", False) else factor
            for name in names:
                # The anchor's remainder is left out: it shifts the rest point by a rounding of θ.
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


# A value refers to its key only weakly, so that an entry goes with the optimizer.
_SHARED: WeakKeyDictionary[Optimizer, _SharedPull] = WeakKeyDictionary()


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


def _same(before: list[Held], now: list[Held]) -> bool:
    return len(before) == len(now) and all(
        a.well is b.well
        and a.strength == b.strength
        and all(a.parameters[name] is b.parameters[name] for name in a.well.precision)
        for a, b in zip(before, now, strict=True)
    )


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
