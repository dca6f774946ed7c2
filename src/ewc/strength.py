"""A budget in place of a strength: λ follows from how much the remembered tasks have lost.

By the memory's estimate, their loss has risen by e nats per sample; it may rise to the budget B. λ
is the multiplier of this constraint, e <= B. With r = √(e / B), the distance from the anchor in
units of the one that is allowed,

    λ = Λ r     the pull is weaker inside and stronger outside
    Λ ← Λ r     at each measurement of e, unless r already moves towards 1

Only ratios enter, so the scale of the Fisher, the optimizer and its learning rate do not matter.
Where training rests below the budget, Λ falls, and the pull vanishes; it falls only so far that it
is back within some twenty measurements. Measurements are so far apart that e changes little in
between; where e is well beyond B, every step is measured.

The implicit pull, `attach` without `how="gradient"`, is stable for every λ, so λ may be too large
for a while. That allows more (all of it is left out for an explicit penalty, which would diverge):

- A task begins with Λ = 0.1 / B or more: at the budget the penalty is 0.1 nats, about what cross
  entropies need. From there Λ falls while the pull holds e back, and e reaches B from below.
- λ = Λ r is that of the distance expected after the coming step, at the present speed.
- While e rises beyond B, Λ grows faster.
- If e falls from beyond B to below it within a few steps, these are so large that λ alone decides
  where they end, and λ and Λ both answer to the same error. Then the square root of r is taken in
  place of r, and if that is still too much, its fourth root.

Nobody knows the right B for a new problem. By default the weights may move by 4 % of their size,
where both are measured by the importance of the weights: B = ½ Σ F (0.04 θ*)².
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from ewc.curvature.tasks import PullState
from ewc.curvature.wells import Well, energy, energy_at_zero
from ewc.diagnostics import warn_of_runaway, warn_of_smallest_budget

# B = ½ Σ F (AUTO_DISTANCE · θ*)², if the budget is "auto". With Kronecker factors, whose estimate
# is nearer to the real rise, it is another one, chosen on permuted MNIST (784-100-100-10, 6,000
# images, 10 and 20 tasks, SGD and Adam): at most 0.8 % below the best fixed λ of 3, 10, 30, 100.
AUTO_DISTANCE = 0.04
AUTO_DISTANCE_OF_LAYERS = 0.03
FASTEST = (0.5, 3.0)  # Λ changes by at most these factors in one measurement
REST = 0.02  # a change of e between two measurements, relative: less is rest
LARGE = 0.1  # and more is too much: measure more often
LONGEST = 16  # steps between two measurements
BEYOND = 1.2  # e / B above which every step is measured
SEARCH = 64  # steps of a task in which the strength is not judged
RANGE = (1e-9, 1e30)  # of Λ: the lower end is without pull for any usual Fisher

# Of an implicit pull alone. Chosen on MNIST followed by MNIST with shuffled pixels (784-400-10, SGD
# and Adam at four learning rates, the loss times 1e-4 to 100), and on a weight under a constant
# force of any size; measured on others in docs/how-to/choose-strength.md.
FIRST_PENALTY = 0.1  # Λ B in nats, at the beginning of a task
WEAK_PENALTY = 1e-6  # Λ B down to which every step is measured while Λ falls
FASTEST_RISE = 10.0  # Λ grows by at most this factor in one measurement while e rises beyond B
GAINS = (0.25, 1.0)  # the range of the exponent of r
RECOVERY = 1.02  # by which the exponent grows again in each measurement
NEAR = (0.5, 2.0)  # unless e / B is between these
SOON = 4  # steps within which a fall from beyond B to below it is an answer to λ


@dataclass(frozen=True)
class FixedStrength:
    """A strength that the user chose."""

    strength: float
    settled: ClassVar[bool] = True

    def step(
        self, estimate: Callable[[], float], allowed: Callable[[], float], *, implicit: bool
    ) -> "FixedStrength":
        """Return the strength of the next step: the same."""
        return self

    def begun(self) -> "FixedStrength":
        """Return the strength for the next task: the same."""
        return self


@dataclass(frozen=True)
class Budget:
    """A budget, and the strength that keeps it.

    Attributes:
        budget: B, in nats per sample; or "auto".
        strength: λ of the present step; 0 until there is something to measure.
        strength_at_budget: Λ, the strength at the budget; 0 if nothing is known of it.
        estimate: e at the last measurement.
        interval: steps from the last measurement to the next.
        wait: how many of them are still to come.
        age: steps of the present task up to the last measurement.
        gain: the exponent of r.
    """

    budget: float | Literal["auto"]
    strength: float = 0.0
    strength_at_budget: float = 0.0
    estimate: float = 0.0
    interval: int = 1
    wait: int = 0
    age: int = 0
    gain: float = 1.0

    @property
    def settled(self) -> bool:
        """Whether the strength has had the time to find its order of magnitude."""
        return self.age >= SEARCH

    def begun(self) -> "Budget":
        """Return the budget for the training of another task, which begins at the next step."""
        return replace(self, age=0, interval=1, wait=0)

    def step(
        self, estimate: Callable[[], float], allowed: Callable[[], float], *, implicit: bool
    ) -> "Budget":
        """Return the budget with the strength of the next step.

        Args:
            estimate: measures e. It is called at some steps only: it costs a pass over the weights.
            allowed: returns B in nats.
            implicit: whether the pull is stable for every strength.
        """
        if self.wait > 0:
            return replace(self, wait=self.wait - 1)
        return self.measured(estimate(), allowed(), implicit=implicit)

    def measured(self, estimate: float, allowed: float, *, implicit: bool) -> "Budget":
        """Return the budget after e was measured, where B nats are allowed.

        An e that is not finite is ignored.
        """
        if not math.isfinite(estimate):
            return self
        if estimate > 0 and allowed == 0:
            raise ValueError(
                'budget="auto" is relative to the weights that the memory holds, and all of them '
                "are 0 where they matter: give a budget in nats, such as EWC(model, budget=0.001), "
                "or a strength"
            )
        if allowed == 0:
            return self
        distance = math.sqrt(estimate / allowed)
        if implicit and self.age == 0:
            return self._begin(estimate, allowed)
        age, gain, expected = self.age + self.interval, self.gain, distance
        change = estimate - self.estimate
        large = abs(change) > LARGE * self.estimate
        rest, factor = REST, _within(distance, FASTEST)
        if implicit:
            answered = large and self.interval <= SOON
            if answered and estimate < allowed < self.estimate:
                gain = max(gain / 2, GAINS[0])
            elif not NEAR[0] < estimate / allowed < NEAR[1]:
                gain = min(gain * RECOVERY, GAINS[1])
            speed = (distance - math.sqrt(self.estimate / allowed)) / self.interval
            if large and speed > 0:
                expected += gain * speed
            expected = _within(expected, (FASTEST[0], FASTEST_RISE)) ** gain
            factor = factor**gain
            if distance < 1:
                # Without a pull the distance grows by 1 / age per step, and e by twice that.
                rest = max(REST, self.interval / age)
            elif large and change > 0:
                factor = min(expected**2, FASTEST_RISE)
        strength_at_budget = self.strength_at_budget or 1.0
        if (change if distance < 1 else -change) <= rest * self.estimate:
            strength_at_budget = _within(strength_at_budget * factor, RANGE)
        interval = max(self.interval // 2, 1) if large else min(2 * self.interval, LONGEST)
        falls = implicit and strength_at_budget < self.strength_at_budget and distance < FASTEST[0]
        if estimate > BEYOND * allowed or (falls and strength_at_budget * allowed > WEAK_PENALTY):
            interval = 1
        return replace(
            self,
            strength=min(strength_at_budget * expected, RANGE[1]),
            strength_at_budget=strength_at_budget,
            estimate=estimate,
            interval=interval,
            wait=interval - 1,
            age=age,
            gain=gain,
        )

    def _begin(self, estimate: float, allowed: float) -> "Budget":
        """Return the budget for the first step of a task, which may go anywhere."""
        strength_at_budget = _within(max(self.strength_at_budget, FIRST_PENALTY / allowed), RANGE)
        distance = max(math.sqrt(estimate / allowed), 1.0)
        strength = min(strength_at_budget * distance, RANGE[1])
        return replace(
            self, strength=strength, strength_at_budget=strength_at_budget, estimate=estimate, age=1
        )


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


ROUNDINGS = 0.25  # the least distance of a budget that can be kept, in roundings of the weights


class MemoryStrength:
    """What a memory has as its strength: a fixed one, or a budget that finds it.

    In the methods `state` is what pulls at present, and `tasks` is how many tasks that is, see
    `TaskWells.weight`.

    Args:
        strength: λ, see `EWC`.
        budget: B, see `EWC`; with neither of them it is "auto".

    Attributes:
        control: the strength or the budget. It is never changed in place, another one replaces it.
    """

    def __init__(self, strength: float | None, budget: float | str | None) -> None:
        if strength is not None and budget is not None:
            raise ValueError(
                f"expected a strength or a budget, got strength={strength} and budget={budget}: "
                "a budget finds the strength"
            )
        self.control: FixedStrength | Budget
        if strength is not None:
            self.fix(strength)
        else:
            self.limit("auto" if budget is None else budget)
        self._ran_away = False  # whether the user was told that the weights diverged
        self._told_smallest = False  # and that the budget is below what rounding allows
        # The last well that was asked for, and its energy.
        self._at_zero: tuple[Well, float] = (Well(), 0.0)
        # The budget after the last step with a penalty in the loss, and the energy at that step.
        self._last_penalty: tuple[FixedStrength | Budget, float] | None = None

    @property
    def budget(self) -> float | Literal["auto"] | None:
        """The budget; None with a fixed strength."""
        return self.control.budget if isinstance(self.control, Budget) else None

    def fix(self, strength: float | str) -> None:
        """Take a strength that the user chose."""
        if isinstance(strength, str):
            raise TypeError(
                f"expected a number as strength, got {strength!r}: a strength that is found while "
                'you train is a budget, and EWC(model, budget="auto") is the default'
            )
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(f"expected a finite strength >= 0, got {strength}")
        self.control = FixedStrength(float(strength))

    def limit(self, budget: float | str) -> None:
        """Take a budget that the user chose."""
        if budget == "auto":
            self.control = Budget("auto")
            return
        if isinstance(budget, str) or not (math.isfinite(budget) and budget > 0):
            raise ValueError(f"expected a finite budget > 0 or 'auto', got {budget!r}")
        self.control = Budget(float(budget))

    @torch.no_grad()
    def estimated_rise(self, state: PullState, tasks: float) -> float:
        """Return e, see `EWC.estimated_rise`."""
        if not state.well.names:
            return 0.0
        above_offset = energy(replace(state.well, offset=0.0), state.parameters)
        return float(above_offset) / 2 / tasks

    @torch.no_grad()
    def allowed_rise(self, state: Callable[[], PullState], tasks: float) -> float:
        """Return B in nats, see `EWC.allowed_rise`; `state` is called only if B depends on it."""
        if not isinstance(self.control, Budget):
            return math.inf
        if self.control.budget != "auto":
            return self.control.budget
        well, parameters = (now := state()).well, now.parameters
        if not well.names:
            return 0.0
        if well is not self._at_zero[0]:
            self._at_zero = (well, energy_at_zero(well, parameters))
        distance = AUTO_DISTANCE_OF_LAYERS if well.layers else AUTO_DISTANCE
        return distance**2 * self._at_zero[1] / 2 / tasks

    def begin_task(self) -> None:
        """Expect the training of another task."""
        self.control = self.control.begun()

    def advance(self, state: Callable[[], PullState], tasks: float, *, implicit: bool) -> None:
        """Find the strength for the next step of an attached optimizer.

        Args:
            state: returns what pulls at present; it is called only if something is measured.
            tasks: how many tasks pull.
            implicit: whether the pull is stable for every strength.
        """
        if self._may_be_too_small():
            self._check_smallest_budget(state(), tasks)

        def estimate() -> float:
            rise = self.estimated_rise(state(), tasks)
            self._check_finite(rise)
            return rise

        def allowed() -> float:
            return self.allowed_rise(state, tasks)

        self.control = self.control.step(estimate, allowed, implicit=implicit)

    def coming(self, state: PullState, tasks: float, energy_now: float) -> FixedStrength | Budget:
        """Return the strength for a penalty in the loss of the coming step; nothing changes.

        It is that of the last step if the weights have not moved since then.

        Args:
            state: what pulls at present.
            tasks: how many tasks pull.
            energy_now: the energy of the well at the present weights.
        """
        if self._last_penalty is not None:
            control, energy_then = self._last_penalty
            if control is self.control and energy_then == energy_now:
                return self.control
        return self.control.step(
            lambda: self.estimated_rise(state, tasks),
            lambda: self.allowed_rise(lambda: state, tasks),
            implicit=False,
        )

    def advance_to(
        self,
        coming: FixedStrength | Budget,
        before: FixedStrength | Budget,
        state: PullState,
        tasks: float,
        energy_now: float,
    ) -> None:
        """Take what `coming` returned, once its penalty has pulled; the first of a step decides.

        Args:
            coming: what `coming` returned.
            before: the strength or the budget that it was found from.
            state: as given to `coming`.
            tasks: as given to `coming`.
            energy_now: as given to `coming`.
        """
        if self.control is not before:
            return
        if self._may_be_too_small():
            self._check_smallest_budget(state, tasks)
        if isinstance(before, Budget):
            self._check_finite(energy_now)
        self.control = coming
        self._last_penalty = (coming, energy_now)

    def _may_be_too_small(self) -> bool:
        """Whether a task begins with a budget that may be too small; "auto" is far above that."""
        control = self.control
        if self._told_smallest or not isinstance(control, Budget) or control.age > 0:
            return False
        return control.budget != "auto"

    @torch.no_grad()
    def _check_smallest_budget(self, state: PullState, tasks: float) -> None:
        """Warn once of a budget that the dtype of the weights cannot keep."""
        well = replace(state.well, offset=0.0)
        by_dtype: dict[torch.dtype, dict[str, torch.Tensor]] = {}
        for name in well.names:
            parameter = state.parameters[name]
            by_dtype.setdefault(parameter.dtype, {})[name] = parameter
        rounding = math.fsum(
            (ROUNDINGS * torch.finfo(dtype).eps) ** 2 * energy_at_zero(well, parameters)
            for dtype, parameters in by_dtype.items()
        )
        smallest = rounding / 2 / tasks if rounding > 0 else 0.0
        if isinstance(self.control, Budget) and float(self.control.budget) < smallest:
            self._told_smallest = True
            warn_of_smallest_budget(float(self.control.budget), smallest)

    def _check_finite(self, rise: float) -> None:
        """Warn once if the weights diverged."""
        if not (math.isfinite(rise) or self._ran_away):
            self._ran_away = True
            warn_of_runaway()
