"""The wells of all tasks that a memory knows, and what pulls on the weights at one moment."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ewc.curvature.wells import Center, Well, add, energy, fitted, merged
from ewc.distributed.shards import elementwise


@dataclass(frozen=True)
class TaskWells:
    """The tasks, oldest first, and their wells.

    Methods return a new object, so that a failure changes nothing. Their argument `parameters` are
    the model's present parameters by name, which the wells are made to fit.

    Attributes:
        decay: γ of online EWC; 1 means that every task counts the same forever.
        keep_tasks: whether each task's own well is kept too.
        center: whether the tasks that pull lie around their own weights or around the last ones.
        storage: the device of these wells; None means that of the weights.
        tasks: the names of all tasks.
        total: the wells of all tasks, merged into one.
        kept: each task's own well, with `keep_tasks`.
        left_out: tasks whose wells do not pull for a while; one may be in it twice.
        active: the well that pulls, which is the total without the tasks left out.
    """

    decay: float
    keep_tasks: bool = False
    center: Center = "each"
    storage: torch.device | None = None
    tasks: tuple[str, ...] = ()
    total: Well = field(default_factory=Well)
    kept: Mapping[str, Well] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    active: Well = field(default_factory=Well)

    @property
    def weight(self) -> float:
        """How many tasks pull, Σ γ^k: with `decay` below 1 the older ones count less."""
        pulling = sum(task not in self.left_out for task in self.tasks)
        return math.fsum(self.decay**age for age in range(pulling))

    def new_name(self, task: str | None) -> str:
        """Return the name for a task that is about to be added; raise if it is taken."""
        if task is None:
            numbers = range(len(self.tasks) + 1, 2 * len(self.tasks) + 2)
            return next(name for n in numbers if (name := f"task {n}") not in self.tasks)
        if not isinstance(task, str | int):
            raise TypeError(f"expected the name of a task to be a string, got {task!r}")
        if task in self.tasks and not self.keep_tasks:
            raise ValueError(
                f"the memory already has a task {task!r}; use another name, "
                "or EWC(..., keep_tasks=True) to replace its well"
            )
        return task

    def check_kept(self, task: str) -> None:
        """Raise unless the task has a well of its own."""
        if not self.keep_tasks:
            raise RuntimeError("single tasks are kept only by EWC(..., keep_tasks=True)")
        if task not in self.tasks:
            raise ValueError(f"expected one of the tasks {list(self.tasks)}, got {task!r}")

    def add(self, task: str, well: Well, parameters: Mapping[str, Tensor]) -> "TaskWells":
        """Add the well of a task, as the newest. A well that the task had before is dropped."""
        others = self.remove(task, parameters) if task in self.tasks else self
        return replace(
            self,
            tasks=(*others.tasks, task),
            total=merged([fitted(others.total, parameters), well], self.decay, self.center),
            kept={**others.kept, task: self._stored(well)} if self.keep_tasks else {},
        ).leave_out(self.left_out, parameters)

    def remove(self, task: str, parameters: Mapping[str, Tensor]) -> "TaskWells":
        """Drop a task: the others are merged again from their own wells."""
        kept = {name: well for name, well in self.kept.items() if name != task}
        total = merged(
            (fitted(well, parameters) for well in kept.values()), self.decay, self.center
        )
        without = replace(self, tasks=tuple(kept), total=total, kept=kept)
        return without.leave_out(self.left_out, parameters)

    def leave_out(self, tasks: tuple[str, ...], parameters: Mapping[str, Tensor]) -> "TaskWells":
        """Let all tasks pull but these."""
        if not tasks:
            return self.leave_none_out()
        pulling = (well for name, well in self.kept.items() if name not in tasks)
        active = merged((fitted(well, parameters) for well in pulling), self.decay, self.center)
        return replace(self, left_out=tasks, active=active)

    def leave_none_out(self) -> "TaskWells":
        """Let all tasks pull."""
        return replace(self, left_out=(), active=self.total)

    def fitted(self, parameters: Mapping[str, Tensor]) -> "TaskWells":
        """Follow the model to other devices and larger shapes; the same object if it stayed.

        Only the well that pulls is fitted. The others follow when they are used.
        """
        active = fitted(self.active, parameters)
        if active is self.active:
            return self
        return replace(self, active=active, total=self.total if self.left_out else active)

    def all_fitted(self, parameters: Mapping[str, Tensor]) -> "TaskWells":
        """Follow the model with all wells, also those that do not pull at present."""
        total = fitted(self.total, parameters)
        kept = {task: fitted(well, parameters) for task, well in self.kept.items()}
        return replace(self, total=total, kept=kept)

    def loaded(
        self,
        decay: float,
        tasks: Iterable[str],
        total: Well,
        kept: Mapping[str, Well],
        parameters: Mapping[str, Tensor],
    ) -> "TaskWells":
        """Replace all tasks and wells by those of a saved state."""
        return replace(
            self,
            decay=decay,
            tasks=tuple(tasks),
            total=fitted(total, parameters),
            kept={task: self._stored(fitted(well, parameters)) for task, well in kept.items()},
        ).leave_out(self.left_out, parameters)

    def _stored(self, well: Well) -> Well:
        return well if self.storage is None else well.to(self.storage)


class PullState(NamedTuple):
    """The model's parameters by name, the well that pulls on them, and the strength λ.

    A weight that is computed from parameters may be in the place of one; then `sources` has these.
    `settled` is False while a budget still looks for its strength. `parts` are the states that this
    one was combined from.
    """

    parameters: Mapping[str, Tensor]
    well: Well
    strength: float
    sources: Mapping[str, Sequence[Tensor]] = MappingProxyType({})
    settled: bool = True
    parts: Sequence["PullState"] = ()

    def moved_by(self, name: str) -> Sequence[Tensor]:
        """Return the parameters that move a weight: itself, or what it is computed from."""
        return self.sources.get(name, (self.parameters[name],))

    def penalty(self) -> Tensor:
        """Return (λ / 2) times the energy of the well, or the sum of that of all parts."""
        if self.parts:
            first, *others = (part.penalty() for part in self.parts)
            return sum((penalty.to(first.device) for penalty in others), first)
        return self.strength / 2 * energy(self.well, self.parameters)


def combined(states: Sequence[PullState]) -> PullState:
    """Return one state that pulls as all of them do: Σ λP around the mean of the anchors.

    It has no layers: each memory pulls on its own, with the forces that it holds.

    Parameters are matched by identity, because memories may know them by different names. This is
    done at every step at which a strength has changed, so it reads no values.
    """
    strength = max(state.strength for state in states)
    names: dict[int, str] = {}
    parameters: dict[str, Tensor] = {}
    sources: dict[str, Sequence[Tensor]] = {}
    total = Well()
    for number, state in enumerate(states):
        factor, well = state.strength / strength, state.well  # at most 1: no precision overflows
        scale = partial(torch.mul, other=factor)
        new = {
            name: names.setdefault(id(state.parameters[name]), f"{number}.{name}")
            for name in well.precision
        }
        parameters |= {new[name]: state.parameters[name] for name in new}
        sources |= {new[name]: state.sources[name] for name in new if name in state.sources}
        scaled = Well(
            {new[name]: elementwise(scale, tensor) for name, tensor in well.precision.items()},
            {new[name]: well.anchor[name] for name in new},
        )
        total = add(total, scaled, offset=False)
    settled = all(state.settled for state in states)
    return PullState(parameters, total, strength, sources, settled, tuple(states))
