"""Synaptic intelligence (Zenke et al. 2017, arXiv 1703.04200): what each weight did for the loss.

    ω_i = −Σ_k g_i(θ_k) (θ_i,k+1 − θ_i,k)
    Ω_i = max(ω_i, 0) / ((θ_i,end − θ_i,start)² + ξ)

The sum is over the steps of a task, and g is the gradient of the task's loss alone. It approximates
the path integral of the gradient, so Σ_i ω_i is about the decrease of the loss, and ω_i is weight
i's share of it. The movement of a step is everything until the next gradient: the optimizer's step
and the pull that follows it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.parameters import ParameterSelection, at_least_float32, select_parameters, unwrap, widened
from ewc.pull import let_pulls_come_last


class SynapticIntelligence:
    """Watches an optimizer train a task, to say how much each weight lowered the loss.

    Create it before the first step of the task. It works with every optimizer, sees the gradient
    before any pull is added to it, and keeps four tensors per parameter until `remove()`. Gradients
    are those that the optimizer gets: clipped, if they are clipped.

    The penalty of the paper is c Σ Ω (θ − θ*)², so its c is half of our strength, and it keeps one
    anchor, the weights of the last task; `EWC(..., decay=0.999)` comes close to that. With one
    noisy gradient per step, ω is biased upwards: the step follows the gradient of its own batch.

    Args:
        model: the model to watch.
        optimizer: an optimizer of all parameters that are watched.
        damping: ξ, which bounds the importance of weights that hardly moved.
        parameters: which parameters, as for `EWC`.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> memory = ewc.EWC(model, strength=1.0)
        >>> handle = memory.attach(optimizer)
        >>> path = ewc.importances.SynapticIntelligence(model, optimizer)
        >>> for _ in range(3):  # train task A as usual
        ...     optimizer.zero_grad()
        ...     model(torch.randn(8, 4)).square().mean().backward()
        ...     optimizer.step()
        >>> memory.anchor(path.precision(), task="A")
        >>> path.restart()  # and train task B
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        damping: float = 0.1,
        parameters: ParameterSelection = None,
    ) -> None:
        if not (math.isfinite(damping) and damping > 0):
            raise ValueError(f"expected a finite damping > 0, got {damping}")
        optimizer = getattr(optimizer, "optimizer", optimizer)  # inside a trainer's wrapper
        self.damping = float(damping)
        self._model = unwrap(model)
        self._parameters = select_parameters(model, parameters)
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in self._parameters.items():
            if id(parameter) not in owned:
                raise ValueError(
                    f"expected an optimizer of {name!r}, but it does not have this parameter: "
                    f"leave it out with parameters='!{name}', or watch its own optimizer too"
                )
        self.restart()
        self._hook = optimizer.register_step_pre_hook(self._before_step)
        let_pulls_come_last(optimizer)  # what they add is not part of the gradient of the task

    def restart(self) -> None:
        """Begin a new task at the current weights."""
        self.steps = 0  # gradients seen
        self._start = {name: self._current(name).clone() for name in self._parameters}
        self._path = {name: torch.zeros_like(start) for name, start in self._start.items()}
        # The step that is not over yet: where it started, and the gradient there.
        self._from: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}

    def remove(self) -> None:
        """Stop watching. It does no harm to call this twice."""
        self._close_step()
        self._hook.remove()

    def precision(self) -> dict[str, Tensor]:
        """Return Ω = max(ω, 0) / ((θ − θ_start)² + ξ), one tensor per parameter, for `EWC.anchor`.

        Call it at the weights that are anchored.
        """
        if self.steps == 0:
            raise RuntimeError(
                "no step was seen: create SynapticIntelligence before training, with the optimizer "
                "that trains"
            )
        now = dict(self._model.named_parameters())
        for name, parameter in self._parameters.items():
            if now.get(name) is not parameter:
                raise RuntimeError(f"{name!r} was replaced in the model since it is watched")
        self._close_step()
        return {
            name: path.clamp_min(0)
            / ((self._current(name) - self._start[name]) ** 2 + self.damping)
            for name, path in self._path.items()
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the path so far as a flat dict of tensors, to go on from a checkpoint."""
        self._close_step()
        return {
            "steps": torch.tensor(self.steps),
            **{f"start.{name}": start.clone() for name, start in self._start.items()},
            **{f"path.{name}": path.clone() for name, path in self._path.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; the model must have the weights of the same moment."""
        own = self.state_dict()
        if state.keys() != own.keys():
            odd = sorted(state.keys() ^ own.keys())
            raise ValueError(f"expected the state of the same parameters, but {odd[0]!r} differs")
        for key, tensor in own.items():
            if state[key].shape != tensor.shape:
                raise ValueError(
                    f"expected shape {tuple(tensor.shape)} for {key!r}, got "
                    f"{tuple(state[key].shape)}"
                )
        self.steps = int(state["steps"])
        for prefix, tensors in (("start", self._start), ("path", self._path)):
            for name, tensor in tensors.items():
                tensor.copy_(state[f"{prefix}.{name}"])

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        closure: Callable[[], Any] | None = kwargs.get("closure", args[1] if args[1:] else None)
        if closure is None:
            self._observe(optimizer)
            return None

        def observed_closure() -> Any:  # it computes the gradients, perhaps several times per step
            loss = closure()
            self._observe(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": observed_closure}

    @torch.no_grad()
    def _observe(self, optimizer: Optimizer) -> None:
        """End the last step where the weights are now, and begin the next with their gradient."""
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return  # a GradScaler makes a fused optimizer skip this step
        self._close_step()
        scale = getattr(optimizer, "grad_scale", None)  # of a GradScaler, if fused
        factor = 1.0 if scale is None else 1 / float(scale)
        maximized = {
            id(p)
            for group in optimizer.param_groups
            if group.get("maximize")
            for p in group["params"]
        }
        for name, parameter in self._parameters.items():
            if (gradient := parameter.grad) is None:
                continue
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            sign = -1.0 if id(parameter) in maximized else 1.0
            self._gradients[name] = widened(gradient) * (sign * factor)
            self._from[name] = self._current(name).clone()
        self.steps += 1

    @torch.no_grad()
    def _close_step(self) -> None:
        """ω ← ω − g (θ − θ_from) for the step that is not over yet, if there is one."""
        for name, gradient in self._gradients.items():
            moved = self._current(name) - self._from[name]
            self._path[name].addcmul_(gradient, moved, value=-1.0)
        self._gradients, self._from = {}, {}

    def _current(self, name: str) -> Tensor:
        """Return a parameter's values in the type that its path is summed in."""
        parameter = self._parameters[name].detach()
        return parameter.to(at_least_float32(parameter.dtype))
