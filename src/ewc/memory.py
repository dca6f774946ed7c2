"""The memory: every task learned so far, as one quadratic well that pulls on the weights.

    penalty(θ) = (strength / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)²

with F_t the Fisher diagonal of task t and θ*_t the weights that solved it (the paper's equation 3).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.fisher import fisher_diagonal
from ewc.fisher.likelihood import Kind, Likelihood, Positions
from ewc.fisher.scaling import shaped
from ewc.parameters import (
    ParameterSelection,
    as_reusable,
    matching_parameters,
    select_parameters,
    unwrap,
)
from ewc.pull import Pull
from ewc.pull_checks import OwnerWatch
from ewc.ready_fisher import ready_fisher
from ewc.serialization import pack, unpack
from ewc.step_size import How
from ewc.warnings import fingerprint, warn_if_moved, warn_if_zero
from ewc.wells import Held, Holdings, Well, check_precision, fit, wide


class EWC:
    """Elastic weight consolidation: remembers tasks as quadratic wells around their solutions.

        memory = EWC(model, strength=100.0)
        handle = memory.attach(optimizer)
        train(model, optimizer, task_a)
        memory.consolidate(batches_of_a, task="A")
        train(model, optimizer, task_b)            # every step is pulled towards what solved A

    `strength` is the paper's λ and may be changed at any time. `parameters` selects weights by
    name (`"!head.*"` leaves a head out).

    With `decay` < 1 this is online EWC (Schwarz et al. 2018): each consolidation multiplies the
    precision so far by `decay` and anchors all of it anew, at the present weights.

    With `keep_tasks` every task's own well is kept too, beside the weights or where wished
    (`keep_tasks="cpu"`). `without`, `forget` and consolidating a task again need it; the memory is
    then, to rounding, one built from the wells that remain, a task consolidated again the newest.

    A copy (`copy.deepcopy`, pickle) has its own copy of the model, and is attached to those of its
    optimizers that are copied along: `model, optimizer, memory = copy.deepcopy((model, optimizer,
    memory))`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float,
        decay: float = 1.0,
        parameters: ParameterSelection = None,
        keep_tasks: bool | str | torch.device = False,
    ) -> None:
        self.strength = strength
        if not 0 <= decay <= 1:
            raise ValueError(f"expected 0 <= decay <= 1, got {decay}")
        self._holdings = Holdings(float(decay))
        self._model = unwrap(model)
        self._selection = as_reusable(parameters)
        self._keep_tasks = keep_tasks is not False
        self._keep_on = None if isinstance(keep_tasks, bool) else torch.device(keep_tasks)
        self._pulls: WeakKeyDictionary[Optimizer, Pull] = WeakKeyDictionary()
        # At the last consolidation; None once something pulled, or there is nothing to compare.
        self._last_weights: dict[str, tuple[float, float]] | None = None
        self._told: set[str] = set()  # what it has warned of
        self._owners = OwnerWatch()
        select_parameters(self._model, self._selection)

    @property
    def strength(self) -> float:
        """λ: how much the old tasks count against the new one."""
        return self._strength

    @strength.setter
    def strength(self, strength: float) -> None:
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(f"expected a finite strength >= 0, got {strength}")
        self._strength = float(strength)

    @property
    def decay(self) -> float:
        """γ of online EWC; 1 means that every task counts the same for ever."""
        return self._holdings.decay

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks held, in the order of their consolidation."""
        return self._holdings.tasks

    def __repr__(self) -> str:
        return f"EWC(strength={self.strength}, decay={self.decay}, tasks={list(self.tasks)})"

    def consolidate(
        self,
        batches: Iterable[Any] | Mapping[str, Tensor],
        *,
        task: str | None = None,
        kind: Kind = "exact",
        likelihood: Likelihood = "categorical",
        positions: Positions = "mean",
        max_samples: int | None = None,
        generator: torch.Generator | None = None,
        floor: float = 0.0,
        normalize: float | None = None,
    ) -> dict[str, Tensor]:
        """Remember the current weights as the solution of a task.

        Args:
            batches: data of the task, as `fisher_diagonal` takes it; or a ready Fisher, a mapping
                of parameter names to tensors. A ready Fisher needs the options `kind` to
                `generator` no more: leave them at their defaults.
            task: the name of the task; by default the tasks are numbered.
            kind: the kind of Fisher, see `fisher_diagonal`.
            likelihood: what the outputs of the model mean, see `fisher_diagonal`.
            positions: the scale for sequences, see `fisher_diagonal`.
            max_samples: how many samples to use; all of them by default.
            generator: the source of random labels for `kind="sampled"`.
            floor: fraction of each parameter's mean Fisher that is added to all of its entries.
            normalize: trace that the whole Fisher is scaled to, after the floor was added.

        Returns:
            The Fisher that was stored, one tensor per parameter. If anything fails, the memory
            stays as it was.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, strength=100.0)
            >>> inputs, labels = torch.randn(8, 4), torch.randint(3, (8,))
            >>> fisher = memory.consolidate([(inputs, labels)], task="A", kind="empirical")
            >>> _ = memory.consolidate(fisher, task="B")
            >>> memory.tasks
            ('A', 'B')
        """
        task = self._new_name(task)
        _check_at_least_zero("floor", floor)
        if normalize is not None and not (math.isfinite(normalize) and normalize > 0):
            raise ValueError(f"expected normalize to be a finite trace > 0, got {normalize}")
        selected = select_parameters(self._model, self._selection)
        options: dict[str, Any] = {
            "kind": kind,
            "likelihood": likelihood,
            "positions": positions,
            "max_samples": max_samples,
            "generator": generator,
        }
        fisher = ready_fisher(batches, options, selected) if isinstance(batches, Mapping) else None
        if self._last_weights is not None:
            warn_if_moved(self._last_weights, self._parameters())
        if fisher is None:
            fisher = fisher_diagonal(
                self._model, batches, parameters=selected.__contains__, **options
            )
        warn_if_zero(fisher)
        fisher = shaped(fisher, floor=floor, normalize=normalize)
        self._hold(task, fisher, selected)
        return {name: tensor.clone() for name, tensor in fisher.items()}

    def anchor(self, precision: float | Mapping[str, Tensor], *, task: str | None = None) -> None:
        """Hold the present weights with a given precision: one number, or a tensor per parameter.

        A number is the paper's L2 baseline: every weight counts the same.
        """
        task = self._new_name(task)
        selected = select_parameters(self._model, self._selection)
        if not isinstance(precision, Mapping):
            _check_at_least_zero("precision", precision)
            precision = {
                name: torch.full_like(p, precision, dtype=wide(p.dtype), requires_grad=False)
                for name, p in selected.items()
            }
        self._hold(task, precision, selected)

    def penalty(self) -> Tensor:
        """(strength / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)², to add to a loss instead of `attach`."""
        if torch.is_grad_enabled():  # else it is only looked at, and pulls on nothing
            self._last_weights = None
        return self._held().penalty()

    def attach(self, optimizer: Optimizer, how: How = "proximal") -> Pull:
        """Pull on the weights at every `optimizer.step()` from now on, until `remove()`.

        `"proximal"` takes the pull implicitly after the optimizer's step and is stable for every
        strength; it knows SGD (momentum, Nesterov), Adam, AdamW and RMSprop. `"gradient"` adds the
        penalty's gradient before the step, after any clipping, and works for every optimizer.
        Weights without a gradient in a step are pulled too; frozen ones are not. Several memories
        may be attached to one optimizer, and their penalties add up.
        """
        optimizer = getattr(optimizer, "optimizer", optimizer)  # inside a trainer's wrapper
        previous = self._pulls.get(optimizer)
        if previous is not None and previous.attached:
            raise RuntimeError(
                "this memory is attached to this optimizer already; remove() that first"
            )
        ours = {id(p) for p in select_parameters(self._model, self._selection).values()}
        if not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                "expected an optimizer of the memory's parameters, but it holds none of them"
            )
        self._pulls[optimizer] = Pull(optimizer, how, self._pulling, self._told)
        return self._pulls[optimizer]

    @contextmanager
    def without(self, *tasks: str) -> Iterator[None]:
        """Leave the wells of these tasks out while the `with` block runs: a task trained again.

        States and copies of the memory have all tasks.
        """
        for task in tasks:
            self._check_kept(task)
        self._set_aside((*self._holdings.aside, *tasks))
        try:
            yield
        finally:
            aside = list(self._holdings.aside)
            for task in tasks:
                aside.remove(task)
            self._set_aside(tuple(aside))

    def forget(self, task: str) -> None:
        """Drop a task's well; the memory is then as if built from the other tasks."""
        self._check_kept(task)
        self._holdings = self._holdings.forget(task, self._parameters())

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_holdings": replace(self._holdings, aside=(), active=self._holdings.total),
            "_pulls": dict(self._pulls),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pulls = WeakKeyDictionary(state["_pulls"])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory as a flat dict of tensors, for `torch.save` or safetensors alike."""
        parameters, held = self._parameters(), self._holdings
        total = fit(held.total, parameters)
        kept = {task: fit(well, parameters) for task, well in held.kept.items()}
        values = {"strength": self.strength, "decay": self.decay, "keep_tasks": self._keep_tasks}
        return pack(total, kept, {**values, "tasks": list(held.tasks)})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over strength, decay and tasks; what they hold must have the shape it had at saving.

        To go on with a larger head, load first and let the head grow then. Parameters that the
        state does not hold may be of any shape, new or gone.
        """
        matching = matching_parameters(self._model, self._selection)
        total, kept, values = unpack(state, matching, keep_tasks=self._keep_tasks)
        parameters = self._parameters()
        holdings = replace(
            self._holdings,
            decay=values["decay"],
            tasks=tuple(values["tasks"]),
            total=fit(total, parameters),
            kept={task: self._stored(fit(well, parameters)) for task, well in kept.items()},
        ).activate(parameters)
        self.strength = values["strength"]
        self._holdings = holdings
        self._last_weights = None

    def _hold(
        self, task: str, precision: Mapping[str, Tensor], selected: Mapping[str, nn.Parameter]
    ) -> None:
        check_precision(precision, selected)
        solution = Well(
            {name: tensor.detach().clone() for name, tensor in precision.items()},
            {name: p.detach().to(wide(p.dtype), copy=True) for name, p in selected.items()},
        )
        well = fit(solution, selected)
        kept = self._stored(well) if self._keep_tasks else None
        self._holdings = self._holdings.hold(task, well, kept, self._parameters())
        self._last_weights = fingerprint(selected)

    def _held(self) -> Held:
        parameters = self._parameters()
        self._holdings = self._holdings.fit(parameters)
        return Held(parameters, self._holdings.active, self.strength)

    def _pulling(self) -> Held:
        """What is held, asked at a step of an attached optimizer."""
        self._last_weights = None
        held = self._held()
        attached = (optimizer for optimizer, pull in self._pulls.items() if pull.attached)
        self._owners.check(attached, held, self._told)
        return held

    def _set_aside(self, tasks: tuple[str, ...]) -> None:
        self._holdings = replace(self._holdings, aside=tasks).activate(self._parameters())

    def _stored(self, well: Well) -> Well:
        return well if self._keep_on is None else well.to(self._keep_on)

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._model.named_parameters())

    def _new_name(self, task: str | None) -> str:
        if task is None:
            numbers = range(len(self.tasks) + 1, 2 * len(self.tasks) + 2)
            return next(name for n in numbers if (name := f"task {n}") not in self.tasks)
        if task in self.tasks and not self._keep_tasks:
            raise ValueError(
                f"the task {task!r} is held already; use another name, "
                "or EWC(..., keep_tasks=True) to replace its well"
            )
        return task

    def _check_kept(self, task: str) -> None:
        if not self._keep_tasks:
            raise RuntimeError("single tasks are kept only by EWC(..., keep_tasks=True)")
        if task not in self.tasks:
            raise ValueError(f"expected one of the tasks held, {list(self.tasks)}, got {task!r}")


def _check_at_least_zero(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected {name} to be finite and >= 0, got {value}")
