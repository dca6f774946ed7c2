"""The pull on the weights, taken at every step of an optimizer through its step hooks.

`how="proximal"`: after the optimizer's own step the pull is taken implicitly,

    θ ← (θ + ηλP m) / (1 + ηλP)

with P the precision and m the anchor of the well. This is stable for every λ; `ewc.step_size` knows
η. Several memories on one optimizer pull in one such step, with Σ λP for λP and Σ λP m for λP m.

`how="gradient"`: λP (θ − m) is added to the gradient, for any optimizer. With plain
SGD it diverges where lr · λP is above 2.

Prior art: Kutalev and Lapina 2021 (arXiv 2109.10021) bound the importance to F / (1 + ηλF), and
AR1 (Maltoni and Lomonaco, arXiv 1806.08568) clips it to ηλF <= 1. What is new here is the form for
momentum and adaptive step sizes, taken as a step of its own, at a cost that does not grow with the
number of tasks.
"""

import weakref
from collections.abc import Callable
from typing import Any, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from ewc.block_pull import pull_on_block
from ewc.compiled_pull import check_compiler, pull_compiled
from ewc.pull_checks import StrengthCheck
from ewc.pull_state import PullState, combined
from ewc.pulled_parameters import pulled_blocks, pulled_groups
from ewc.sharding import assembled, shards
from ewc.step_size.rules import needs_whole_parameters, step_size_rule
from ewc.step_size.step import How, ParamGroup


class Pull:
    """A memory's pull on one optimizer: the handle that `EWC.attach` returns.

    A pull that is copied or pickled together with its optimizer pulls on the copy.

    Args:
        optimizer: the optimizer to pull at; it is not kept alive.
        how: `"proximal"` or `"gradient"`.
        start_pull: called at every step; returns what to pull with.
        warned: the warnings that the memory has given, which the pull adds to.
        before_step: called before every step, while the weights are where the last one left them.
        compiled: whether to use the kernels of `ewc.compiled_pull`.
    """

    how: How
    compiled: bool
    start_pull: Callable[[], PullState]
    before_step: Callable[[], None]
    warned: set[str]
    _shared: "_OptimizerPulls | None"

    def __init__(
        self,
        optimizer: Optimizer,
        how: How,
        start_pull: Callable[[], PullState],
        warned: set[str],
        before_step: Callable[[], None],
        compiled: bool = False,
    ) -> None:
        if how not in get_args(How):
            raise ValueError(f"expected how='proximal' or how='gradient', got how={how!r}")
        if how == "proximal":
            step_size_rule(optimizer)  # raises for an optimizer that it does not know
        elif compiled:
            raise ValueError("compiled=True is for how='proximal', got how='gradient'")
        if compiled:
            check_compiler(optimizer)
        self.__setstate__(
            {
                "how": how,
                "start_pull": start_pull,
                "before_step": before_step,
                "warned": warned,
                "compiled": compiled,
                "optimizer": optimizer,
            }
        )

    @property
    def attached(self) -> bool:
        """Whether it still pulls."""
        return self._shared is not None

    def remove(self) -> None:
        """Stop pulling. It does no harm to call this twice."""
        if self._shared is not None:
            self._shared.remove(self)
        self._shared = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "start_pull": self.start_pull,
            "before_step": self.before_step,
            "warned": self.warned,
            "compiled": self.compiled,
            "optimizer": None if self._shared is None else self._shared.optimizer(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.how, self.start_pull = state["how"], state["start_pull"]
        self.before_step, self.warned = state["before_step"], state["warned"]
        self.compiled = state["compiled"]
        self._shared = None
        if (optimizer := state["optimizer"]) is not None:
            if optimizer not in _BY_OPTIMIZER:
                _BY_OPTIMIZER[optimizer] = _OptimizerPulls(optimizer)
            self._shared = _BY_OPTIMIZER[optimizer]
            self._shared.pulls.append(self)


class _OptimizerPulls:
    """All pulls on one optimizer, which is not kept alive."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.pulls: list[Pull] = []
        self._strength_check = StrengthCheck()
        self._combined: dict[How, tuple[list[PullState], PullState]] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def remove(self, pull: Pull) -> None:
        """Remove one pull, and the hooks with the last one."""
        self.pulls.remove(pull)
        if not self.pulls:
            for hook in self._hooks:
                hook.remove()
            if (optimizer := self.optimizer()) is not None:
                del _BY_OPTIMIZER[optimizer]

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        state = self._start_pulls("proximal")
        skipped = _skipped(optimizer)
        if state is None or skipped is True:
            return
        self._strength_check.check_proximal(optimizer, state, self.pulls[0].warned)
        rule, whole = step_size_rule(optimizer), needs_whole_parameters(optimizer)
        compiled = any(pull.compiled for pull in self.pulls)
        share = 1 - skipped if isinstance(skipped, Tensor) else 1.0
        for group, block in pulled_blocks(optimizer, state):
            if compiled:
                block = pull_compiled(rule, group, block, state.strength, share)
            for piece in block.cut(whole=whole):
                pull_on_block(rule, group, piece, state.strength, share)

    def _start_pulls(self, how: How) -> PullState | None:
        """Start the pulls of one kind and return their sum, which is cached while nothing changes.

        None if there is nothing to pull with.
        """
        states = [
            state for pull in self.pulls if pull.how == how if (state := pull.start_pull()).strength
        ]
        if len(states) < 2:
            return states[0] if states else None
        cached = self._combined.get(how)
        if cached is None or not _same(cached[0], states):
            self._combined[how] = cached = (states, combined(states))
        return cached[1]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        for pull in self.pulls:
            pull.before_step()
        if not any(pull.how == "gradient" for pull in self.pulls):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add_to_gradients(optimizer)
            return None

        def closure_with_pull() -> Any:
            # The closure computes the gradients again, and line searches need the whole objective.
            loss = closure()
            state = self._add_to_gradients(optimizer)
            with torch.no_grad():
                return loss if loss is None or state is None else loss + state.penalty()

        return args[:1], {**kwargs, "closure": closure_with_pull}

    @torch.no_grad()
    def _add_to_gradients(self, optimizer: Optimizer) -> PullState | None:
        state = self._start_pulls("gradient")
        if state is None:
            return None
        self._strength_check.check_gradient(optimizer, state, self.pulls[0].warned)
        for group, names in pulled_groups(optimizer, state):
            # Still to come: the division by a GradScaler's scale if fused, the sign if maximizing.
            scale = getattr(optimizer, "grad_scale", None)
            factor = state.strength * (1.0 if scale is None else float(scale))
            factor = -factor if group.get("maximize", False) else factor
            for name in names:
                # The anchor's remainder is left out: it shifts the rest point by a rounding of θ.
                parameter, anchor, precision = shards(
                    (state.parameters[name], state.well.anchor[name], state.well.precision[name])
                )
                gradient = (factor * precision * (parameter - anchor)).to(parameter.dtype)
                if name in state.sources:
                    _add_to_sources(state, name, gradient, group)
                elif parameter.grad is None:
                    state.parameters[name].grad = assembled(gradient, state.parameters[name])
                elif parameter.grad.is_sparse:
                    parameter.grad.add_(gradient.to_sparse(parameter.grad.sparse_dim()))
                else:
                    parameter.grad.add_(gradient)
        return state


# A value refers to its key only weakly, so that an entry disappears with its optimizer.
_BY_OPTIMIZER: WeakKeyDictionary[Optimizer, _OptimizerPulls] = WeakKeyDictionary()


def _same(before: list[PullState], now: list[PullState]) -> bool:
    return len(before) == len(now) and all(
        a.well is b.well
        and a.strength == b.strength
        and all(a.parameters[name] is b.parameters[name] for name in a.well.precision)
        for a, b in zip(before, now, strict=True)
    )


def _add_to_sources(state: PullState, name: str, gradient: Tensor, group: ParamGroup) -> None:
    """Add the gradient of a computed weight to those of its sources in a group: the chain rule."""
    in_group = {id(parameter) for parameter in group["params"]}
    sources = [p for p in state.sources[name] if p.requires_grad and id(p) in in_group]
    # Not `backward`, which would call the hooks by which wrappers share gradients.
    gradients = torch.autograd.grad(state.parameters[name], sources, gradient, retain_graph=True)
    for parameter, own in zip(sources, gradients, strict=True):
        parameter.grad = own if parameter.grad is None else parameter.grad.add_(own)


def _skipped(optimizer: Optimizer) -> bool | Tensor:
    """Whether a GradScaler made a fused optimizer skip this step.

    On a device the answer stays there, as 0 or 1: reading it would make each step wait for it.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return False
    return bool(found_inf) if found_inf.device.type == "cpu" else found_inf.clamp(max=1.0)
