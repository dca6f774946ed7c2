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

Nobody knows the right B for a new problem. By default the weights may move by 4 % of their size,
where both are measured by the importance of the weights: B = ½ Σ F (0.04 θ*)².
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

AUTO_DISTANCE = 0.04  # B = ½ Σ F (AUTO_DISTANCE · θ*)², if the budget is "auto"
FASTEST = (0.5, 3.0)  # Λ changes by at most these factors in one measurement
REST = 0.02  # a change of e between two measurements, relative: less is rest
LARGE = 0.1  # and more is too much: measure more often
LONGEST = 16  # steps between two measurements
BEYOND = 1.2  # e / B above which every step is measured
RANGE = (1e-9, 1e30)  # of Λ: the lower end is without pull for any usual Fisher


@dataclass(frozen=True)
class FixedStrength:
    """A strength that the user chose."""

    strength: float

    def step(self, estimate: Callable[[], float], allowed: Callable[[], float]) -> "FixedStrength":
        """Return the strength of the next step: the same."""
        return self


@dataclass(frozen=True)
class Budget:
    """A budget, and the strength that keeps it.

    Attributes:
        budget: B, in nats per sample; or "auto".
        strength: λ of the present step.
        wall: Λ, the strength at the budget. It begins at 1, where the old tasks count as much as
            the new one.
        estimate: e at the last measurement.
        interval: steps from the last measurement to the next.
        wait: how many of them are still to come.
    """

    budget: float | Literal["auto"]
    strength: float = 0.0
    wall: float = 1.0
    estimate: float = 0.0
    interval: int = 1
    wait: int = 0

    def step(self, estimate: Callable[[], float], allowed: Callable[[], float]) -> "Budget":
        """Return the budget with the strength of the next step.

        Args:
            estimate: measures e. It is called at some steps only: it costs a pass over the weights.
            allowed: returns B in nats.
        """
        if self.wait > 0:
            return replace(self, wait=self.wait - 1)
        return self.measured(estimate(), allowed())

    def measured(self, estimate: float, allowed: float) -> "Budget":
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
        distance = math.sqrt(estimate / allowed) if estimate > 0 else 0.0
        change = estimate - self.estimate
        towards = change if distance < 1 else -change
        wall = self.wall
        if towards <= REST * self.estimate:
            wall = _within(wall * _within(distance, FASTEST), RANGE)
        large = abs(change) > LARGE * self.estimate
        interval = max(self.interval // 2, 1) if large else min(2 * self.interval, LONGEST)
        if estimate > BEYOND * allowed:
            interval = 1
        return replace(
            self,
            strength=min(wall * distance, RANGE[1]),
            wall=wall,
            estimate=estimate,
            interval=interval,
            wait=interval - 1,
        )


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
