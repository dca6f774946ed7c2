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
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Protocol, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.curvature.tasks import PullState, combined
from ewc.distributed.shards import assembled, refuse_deepspeed, shard, shards
from ewc.pull.checks import OwnerCheck, StrengthCheck
from ewc.pull.kronecker import HeldForces, StepCuts, layer_gradients, layer_parameters
from ewc.pull.proximal import KeptWeights, pull_on_block, pulled_blocks, pulled_groups
from ewc.step_size import (
    How,
    MomentumGains,
    ParamGroup,
    StepSizeRule,
    needs_whole_parameters,
    sgd_step_size,
    step_size_rule,
    sums_momentum,
)


class PullingMemory(Protocol):
    """What a pull needs of its memory, an `EWC`.

    Attributes:
        _warned: the warnings that were given, each of which is given once.
        _forces: the forces on layers with Kronecker factors.
    """

    _warned: set[str]
    _forces: HeldForces

    @property
    def model(self) -> nn.Module:
        """The model that is protected."""

    def settle(self) -> None:
        """Pull now, if a pull waits."""

    def _before_step(self, how: How) -> None:
        """Prepare for a step, while the weights are where the last one left them."""

    def _start_pull(self) -> PullState:
        """Return what to pull with at this step."""

    def _pull_state(self) -> PullState:
        """Return what to pull with."""


class Pull:
    """A memory's pull on one optimizer: the handle that `EWC.attach` returns.

    A pull that is copied or pickled together with its optimizer pulls on the copy.

    Args:
        memory: the memory that pulls.
        optimizer: the optimizer to pull at; it is not kept alive.
        how: `"proximal"` or `"gradient"`.
    """

    def __init__(self, memory: PullingMemory, optimizer: Optimizer, how: How) -> None:
        if how not in get_args(How):
            raise ValueError(f"expected how='proximal' or how='gradient', got how={how!r}")
        if how == "proximal":
            step_size_rule(optimizer)  # raises for an optimizer that it does not know
        self.memory, self.how = memory, how
        self._shared: _OptimizerPulls | None = _OptimizerPulls.of(optimizer)
        self._shared.pulls.append(self)

    @property
    def attached(self) -> bool:
        """Whether it still pulls."""
        return self._shared is not None

    def remove(self) -> None:
        """Stop pulling, after a pull that waits. It does no harm to call this twice."""
        if self._shared is None:
            return
        self._shared.remove(self)
        self._shared = None
        if self.how == "proximal":
            self.memory.settle()

    def __getstate__(self) -> dict[str, Any]:
        # Of what is shared, which refers to the optimizer weakly and holds its hooks.
        shared = self._shared
        return {
            "memory": self.memory,
            "how": self.how,
            "optimizer": None if shared is None else shared.optimizer(),
            "momentum": None if shared is None else shared.momentum,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.memory, self.how = state["memory"], state["how"]
        self._shared = None
        if (optimizer := state["optimizer"]) is not None:
            self._shared = _OptimizerPulls.of(optimizer, state["momentum"])
            self._shared.pulls.append(self)


def let_pulls_come_last(optimizer: Optimizer) -> None:
    """Let the pulls on an optimizer act on its gradients after all hooks registered so far."""
    if (pulls := _BY_OPTIMIZER.get(optimizer)) is not None:
        pulls.come_last()


class _OptimizerPulls:
    """All pulls on one optimizer, which is not kept alive."""

    def __init__(self, optimizer: Optimizer, momentum: MomentumGains) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.pulls: list[Pull] = []
        self.momentum = momentum
        self._strength_check = StrengthCheck()
        self._combined: dict[How, tuple[list[PullState], PullState]] = {}
        self._kept: dict[int, KeptWeights] = {}  # by number of the group
        self._weights_before: dict[int, Tensor] = {}  # those of layers, by id
        self._before = optimizer.register_step_pre_hook(self._before_step)
        self._after = (
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        )

    @staticmethod
    def of(optimizer: Optimizer, momentum: MomentumGains | None = None) -> "_OptimizerPulls":
        """Return the pulls on an optimizer.

        Args:
            optimizer: the optimizer.
            momentum: what is known of its momentum, if nothing pulls on it yet.
        """
        if optimizer not in _BY_OPTIMIZER:
            _BY_OPTIMIZER[optimizer] = _OptimizerPulls(optimizer, momentum or MomentumGains())
        return _BY_OPTIMIZER[optimizer]

    def come_last(self) -> None:
        """Register the hook before a step again, behind the others."""
        if (optimizer := self.optimizer()) is not None:
            self._before.remove()
            self._before = optimizer.register_step_pre_hook(self._before_step)

    def remove(self, pull: Pull) -> None:
        """Remove one pull, and the hooks with the last one."""
        self.pulls.remove(pull)
        if not self.pulls:
            for hook in (self._before, *self._after):
                hook.remove()
            if (optimizer := self.optimizer()) is not None:
                del _BY_OPTIMIZER[optimizer]

    def _after_load(self, optimizer: Optimizer) -> None:
        self.momentum = MomentumGains()  # the buffers are others, of an unknown past

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if (skipped := _skipped(optimizer)) is True:
            return
        gains = self.momentum.follow(optimizer) if sums_momentum(optimizer) else {}
        started = self._start_pulls("proximal")
        if (state := self._together("proximal", started)) is None:
            return
        self._strength_check.check_proximal(optimizer, state, self.pulls[0].memory._warned)
        rule, whole = step_size_rule(optimizer), needs_whole_parameters(optimizer)
        not_skipped = 1 - skipped if isinstance(skipped, Tensor) else 1.0
        # All forces first: at rest the weights are then where each pull leaves them alone.
        with_layers = [(pull, own) for pull, own in started if own.well.layers]
        cuts = StepCuts(self._weights_before, len(started) > 1)
        for pull, own in with_layers:
            pull.memory._forces.take(optimizer, own, rule, gains, cuts, not_skipped)
        for number, (group, block) in enumerate(pulled_blocks(optimizer, state, gains)):
            for piece in block.cut(whole=whole):
                # The weights are kept only if all of the group is in one block, which is small.
                kept = self._kept.setdefault(number, KeptWeights()) if piece is block else None
                pull_on_block(rule, group, piece, state.strength, not_skipped, kept)
        for pull, own in with_layers:
            pull.memory._forces.pull_if_due(own)

    def _note_weights(self, optimizer: Optimizer, rule: StepSizeRule) -> None:
        """Note the weights of layers before a step whose size differs from weight to weight."""
        buffers, self._weights_before = self._weights_before, {}
        if rule is sgd_step_size:
            return
        for pull in self.pulls:
            state = pull.memory._pull_state()
            if pull.how == "proximal" and state.strength and state.well.layers:
                for moved in layer_parameters(state):
                    self._weights_before[id(moved)] = _copied(moved, buffers.get(id(moved)))

    def _start_pulls(self, how: How) -> list[tuple[Pull, PullState]]:
        """Start the pulls of one kind, and return those that have something to pull with."""
        started = [(pull, pull.memory._start_pull()) for pull in self.pulls if pull.how == how]
        return [(pull, state) for pull, state in started if state.strength]

    def _together(self, how: How, started: list[tuple[Pull, PullState]]) -> PullState | None:
        """Return the sum of several pulls, which is cached while nothing changes.

        None if there is nothing to pull with.
        """
        states = [state for _, state in started]
        if len(states) < 2:
            return states[0] if states else None
        cached = self._combined.get(how)
        if cached is None or not _same(cached[0], states):
            self._combined[how] = cached = (states, combined(states))
        return cached[1]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        for pull in self.pulls:
            pull.memory._before_step(pull.how)
        if any(pull.how == "proximal" for pull in self.pulls):
            with torch.no_grad():
                self._note_weights(optimizer, step_size_rule(optimizer))
        if not any(pull.how == "gradient" for pull in self.pulls):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add_to_gradients(optimizer, first=True)
            return None
        calls = count()

        def closure_with_pull() -> Any:
            # The closure computes the gradients again, and line searches need the whole objective.
            loss = closure()
            state = self._add_to_gradients(optimizer, first=next(calls) == 0)
            with torch.no_grad():
                return loss if loss is None or state is None else loss + state.penalty()

        return args[:1], {**kwargs, "closure": closure_with_pull}

    @torch.no_grad()
    def _add_to_gradients(self, optimizer: Optimizer, *, first: bool) -> PullState | None:
        """Add the gradient of the penalty; `first` says whether it is so for the first time."""
        started = self._start_pulls("gradient")
        if (state := self._together("gradient", started)) is None:
            return None
        self._strength_check.check_gradient(optimizer, state, self.pulls[0].memory._warned)
        if first:  # a line search may try any weights
            self._strength_check.check_growth(optimizer, state, self.pulls[0].memory._warned)
        for group, names in pulled_groups(optimizer, state):
            for name in names:
                # The anchor's remainder is left out: it shifts the fixed point by a rounding of θ.
                parameter, anchor, precision = shards(
                    (state.parameters[name], state.well.anchor[name], state.well.precision[name])
                )
                gradient = state.strength * precision * (parameter - anchor)
                _add_gradient(optimizer, state, name, gradient, group)
        for _, own in started:
            gradients = layer_gradients(own)
            for group, names in pulled_groups(optimizer, own, gradients):
                for name in names:
                    _add_gradient(optimizer, own, name, gradients[name], group)
        return state


def _copied(tensor: Tensor, buffer: Tensor | None) -> Tensor:
    """Return a copy, in a buffer if that fits: it is as large as the model, at every step."""
    if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != (
        tensor.shape,
        tensor.dtype,
        tensor.device,
    ):
        return tensor.detach().clone()
    return buffer.copy_(tensor)


# A value refers to its key only weakly, so that an entry disappears with its optimizer.
_BY_OPTIMIZER: WeakKeyDictionary[Optimizer, _OptimizerPulls] = WeakKeyDictionary()


def _same(before: list[PullState], now: list[PullState]) -> bool:
    return len(before) == len(now) and all(
        a.well is b.well
        and a.strength == b.strength
        and all(a.parameters[name] is b.parameters[name] for name in a.well.precision)
        for a, b in zip(before, now, strict=True)
    )


def _add_gradient(
    optimizer: Optimizer, state: PullState, name: str, gradient: Tensor, group: ParamGroup
) -> None:
    """Add the gradient of a penalty, this rank's shard of it, to that of a parameter."""
    parameter = shard(state.parameters[name])
    if group.get("maximize", False):
        gradient = -gradient
    # Still to come: the division by a GradScaler's scale if fused.
    if (scale := getattr(optimizer, "grad_scale", None)) is not None:  # on a device: it stays there
        gradient = gradient * scale.to(gradient.device)
    gradient = gradient.to(parameter.dtype)
    if name in state.sources:
        _add_to_sources(state, name, gradient, group)
    elif parameter.grad is None:
        state.parameters[name].grad = assembled(gradient, state.parameters[name])
    elif parameter.grad.is_sparse:
        parameter.grad.add_(gradient.to_sparse(parameter.grad.sparse_dim()))
    else:
        parameter.grad.add_(gradient)


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


class Attachments:
    """The pulls of one memory, by optimizer. The optimizers are not kept alive."""

    def __init__(self) -> None:
        self._pulls: WeakKeyDictionary[Optimizer, Pull] = WeakKeyDictionary()
        self._owner_check = OwnerCheck()

    def __getitem__(self, optimizer: Optimizer) -> Pull:
        return self._pulls[optimizer]

    def __len__(self) -> int:
        return len(self._pulls)

    def attach(
        self, memory: PullingMemory, optimizer: Optimizer, how: How, parameters: Iterable[Tensor]
    ) -> Pull:
        """Attach the memory to an optimizer.

        Args:
            memory: the memory that these pulls are of.
            optimizer: an optimizer of some of the parameters, or a wrapper around one, of a trainer
                or as in sharpness-aware minimization (SAM).
            how: `"proximal"` or `"gradient"`.
            parameters: the parameters by which the memory's weights are moved.
        """
        refuse_deepspeed(optimizer=optimizer)
        optimizer = _innermost(optimizer)
        previous = self._pulls.get(optimizer)
        if previous is not None and previous.attached:
            raise RuntimeError(
                "this memory is already attached to this optimizer; call remove() on the handle "
                "first"
            )
        selected = {id(p) for p in parameters}
        if not any(id(p) in selected for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                "expected an optimizer of the memory's parameters, but it has none of them"
            )
        self._pulls[optimizer] = Pull(memory, optimizer, how)
        return self._pulls[optimizer]

    def check_owners(self, state: PullState, warned: set[str]) -> None:
        """Warn once of each protected parameter that no attached optimizer has.

        Args:
            state: what the memory pulls with.
            warned: the warnings that the memory has given, which this adds to.
        """
        self._owner_check.check(self._attached(), state, warned)

    def _attached(self) -> Iterator[Optimizer]:
        return (optimizer for optimizer, pull in self._pulls.items() if pull.attached)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pulls": dict(self._pulls)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pulls = WeakKeyDictionary(state["_pulls"])


def _innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose `step` moves the weights, inside of all wrappers."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # inside a trainer's wrapper
    while isinstance(base := getattr(optimizer, "base_optimizer", None), Optimizer):
        optimizer = base
    return optimizer
