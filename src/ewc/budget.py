"""A budget in place of a strength: λ follows from how much the remembered tasks have lost.

Their loss has risen by about e = ½ E(θ) / n nats per sample, the mean over n tasks of the quadratic
estimate ½ Σ F (θ − θ*)². It may rise to the budget B. λ is the multiplier of this constraint:

    λ = Λ (e / B)²        a soft wall at the budget: hardly any pull far below, a steep one beyond
    Λ ← Λ (e / B)^¼       at each measurement of e, until it rests at B

Only ratios enter, so the scale of the Fisher, the optimizer and its learning rate do not matter.
Below the budget Λ falls: where training does not use the budget up, the pull vanishes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

DEFAULT_BUDGET = 0.05  # nats per sample
WALL = 2.0  # exponent of the wall
RATE = 0.25  # exponent of its adaptation
FASTEST = (0.5, 10.0)  # e / B counts as between these in it: how far Λ moves in one measurement
LONGEST = 16  # steps between two measurements
TOO_FAR = 2.0  # times the budget: measure again at the next step
RANGE = (1e-30, 1e30)  # of Λ


@dataclass(frozen=True)
class FixedStrength:
    """A strength that the user chose."""

    strength: float

    def step(self, estimate: Callable[[], float]) -> "FixedStrength":
        """Return the strength of the next step: the same."""
        return self


@dataclass(frozen=True)
class Budget:
    """A budget, and the strength that keeps it.

    Attributes:
        budget: B, in nats per sample.
        strength: λ of the present step.
        wall: Λ, the strength at which the estimate would rest at the budget. It begins at 1, where
            the old tasks count as much as the new one.
        interval: steps from the last measurement to the next.
        wait: how many of them are still to come.
    """

    budget: float
    strength: float = 0.0
    wall: float = 1.0
    interval: int = 1
    wait: int = 0

    def step(self, estimate: Callable[[], float]) -> "Budget":
        """Return the budget with the strength of the next step.

        Args:
            estimate: measures e. It is called at some steps only: it costs a pass over the weights.
        """
        if self.wait > 0:
            return replace(self, wait=self.wait - 1)
        return self.measured(estimate())

    def measured(self, estimate: float) -> "Budget":
        """Return the budget after e was measured. What is not finite says nothing and is ignored.

        Measurements are far apart where little changes, and follow each other where e is too large.
        """
        if not math.isfinite(estimate):
            return self
        ratio = estimate / self.budget
        wall = self.wall * _within(ratio, FASTEST) ** RATE
        interval = 1 if ratio > TOO_FAR else min(2 * self.interval, LONGEST)
        return replace(
            self,
            strength=_within(wall * ratio**WALL, (0.0, RANGE[1])),
            wall=_within(wall, RANGE),
            interval=interval,
            wait=interval - 1,
        )


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
