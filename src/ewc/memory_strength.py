"""How strongly a memory pulls: by a strength that the user chose, or by one that keeps a budget."""

import math
from dataclasses import replace
from typing import Literal

import torch

from ewc.budget import AUTO_DISTANCE, Budget, FixedStrength
from ewc.parameters import ModelParameters
from ewc.pull_state import PullState
from ewc.task_wells import TaskWells
from ewc.warnings import warn_of_runaway
from ewc.wells import Well, energy, energy_at_zero


class MemoryStrength:
    """The strength and the budget of `EWC`: it has one of them, and the other one follows."""

    _parameters: ModelParameters
    _wells: TaskWells
    _control: FixedStrength | Budget
    _ran_away: bool = False  # whether the user was told that the weights diverged
    _at_zero: tuple[Well, float] = (Well(), 0.0)  # the last well that was asked for, its energy

    @property
    def strength(self) -> float:
        """λ: how much the old tasks count compared with the new one; the present one of a budget.

        Setting it ends a budget.
        """
        return self._control.strength

    @strength.setter
    def strength(self, strength: float) -> None:
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(f"expected a finite strength >= 0, got {strength}")
        self._control = FixedStrength(float(strength))

    @property
    def budget(self) -> float | Literal["auto"] | None:
        """How much the loss of the remembered tasks may rise; None with a fixed strength.

        Setting it lets the strength follow from now on. See `allowed_rise` for "auto".
        """
        return self._control.budget if isinstance(self._control, Budget) else None

    @budget.setter
    def budget(self, budget: float | str) -> None:
        if budget == "auto":
            self._control = Budget("auto")
            return
        if isinstance(budget, str) or not (math.isfinite(budget) and budget > 0):
            raise ValueError(f"expected a finite budget > 0 or 'auto', got {budget!r}")
        self._control = Budget(float(budget))

    @torch.no_grad()
    def estimated_rise(self) -> float:
        """Return how much the loss of the remembered tasks has risen, by the memory's estimate.

        It is ½ Σ F (θ − θ*)² of each task, the mean over the tasks, above its smallest possible
        value: 0 for a single task, more for several that cannot all have their best weights. It is
        in nats per sample if F is a Fisher. With `decay` below 1 older tasks count less.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, budget=0.05)
            >>> memory.anchor(1.0)
            >>> with torch.no_grad():
            ...     _ = model.bias.add_(0.1)  # 3 weights, of precision 1
            >>> round(memory.estimated_rise(), 6)
            0.015
        """
        state = self._fit_wells()
        if not state.well.precision:
            return 0.0
        above_bottom = energy(replace(state.well, bottom=0.0), state.parameters)
        return float(above_bottom) / 2 / self._wells.weight

    @torch.no_grad()
    def allowed_rise(self) -> float:
        """Return how much `estimated_rise` may become: the budget, infinite with a fixed strength.

        With budget="auto" it is ½ Σ F (0.04 θ*)², the mean over the tasks: the weights may move by
        4 % of their size, as far as they matter.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model)
            >>> with torch.no_grad():
            ...     _ = model.bias.fill_(2.0), model.weight.fill_(0.0)
            >>> memory.anchor(1.0)  # ½ Σ F θ*² = 6
            >>> round(memory.allowed_rise(), 6)
            0.0096
        """
        if not isinstance(self._control, Budget):
            return math.inf
        if self._control.budget != "auto":
            return self._control.budget
        state = self._fit_wells()
        if not state.well.precision:
            return 0.0
        if state.well is not self._at_zero[0]:
            self._at_zero = (state.well, energy_at_zero(state.well, state.parameters))
        return AUTO_DISTANCE**2 * self._at_zero[1] / 2 / self._wells.weight

    def _choose_strength(self, strength: float | None, budget: float | str | None) -> None:
        """Take over what the user chose."""
        if strength is not None and budget is not None:
            raise ValueError(
                f"expected a strength or a budget, got strength={strength} and budget={budget}: "
                "a budget finds the strength"
            )
        if strength is not None:
            self.strength = strength
        else:
            self.budget = "auto" if budget is None else budget

    def _adapt_strength(self) -> None:
        """Choose the strength for the next step of a training."""
        if self._wells.tasks:
            self._control = self._control.step(self._finite_rise, self.allowed_rise)

    def _finite_rise(self) -> float:
        """Return the estimated rise, and warn once if it is not finite."""
        rise = self.estimated_rise()
        if not (math.isfinite(rise) or self._ran_away):
            self._ran_away = True
            warn_of_runaway()
        return rise

    def _fit_wells(self) -> PullState:
        """Fit the wells to the model, which may have moved or grown; return what pulls now."""
        parameters = self._parameters.all()
        self._wells = self._wells.fitted(parameters)
        return PullState(parameters, self._wells.active, self.strength, self._parameters.sources())
