"""A budget finds the strength that keeps it, whatever the scale, and measures seldom."""

import math
from functools import partial

import pytest

from ewc.budget import Budget, FixedStrength

BUDGET = 0.05


def after(budget: Budget, estimate: float, measurements: int = 1) -> Budget:
    for _ in range(measurements):
        budget = budget.measured(estimate, BUDGET)
    return budget


def settled(
    strength: float, speed: float, steps: int, budget: Budget | None = None
) -> tuple[list[float], Budget]:
    """Let a constant force drive one weight away, and the implicit pull of the budget back.

    Args:
        strength: the strength at which the forces are equal at the budget.
        speed: how much of the way to the budget the force goes in a step.
        steps: number of steps.
        budget: the budget at the start, a new one by default.

    Returns:
        The measured e / B of all steps, and the budget at the end.
    """
    budget, distance, ratios = budget or Budget(BUDGET), 0.0, []
    for _ in range(steps):
        ratios.append(distance**2)
        budget = budget.step(lambda: BUDGET * ratios[-1], lambda: BUDGET)
        distance = (distance + speed) / (1 + speed * budget.strength / strength)
    return ratios, budget


@pytest.mark.parametrize("strength", [1e-6, 1e-3, 1.0, 1e3, 1e10])
@pytest.mark.parametrize("speed", [1e-3, 1e-2, 0.1])
def test_the_estimate_comes_to_rest_at_the_budget(strength: float, speed: float) -> None:
    """For strengths that nobody could guess, and without oscillation: once there it stays."""
    ratios, budget = settled(strength, speed, steps=round(20 / speed) + 1000)
    late = ratios[len(ratios) // 2 :]
    assert 0.97 < min(late) <= max(late) < 1.03
    assert budget.strength == pytest.approx(strength, rel=0.03)


@pytest.mark.parametrize("speed", [1.0, 3.0])
def test_steps_that_go_beyond_the_budget_keep_it_roughly(speed: float) -> None:
    """A single step without a pull would go to the budget's distance, or three times as far."""
    ratios, budget = settled(1000.0, speed, steps=1000)
    assert 0.7 < min(ratios[500:]) <= max(ratios[500:]) < 1.3
    assert budget.strength == pytest.approx(1000.0, rel=0.3)


def test_at_the_budget_nothing_changes() -> None:
    there = after(Budget(BUDGET, wall=7.0), BUDGET)
    assert (there.strength, there.wall) == (7.0, 7.0)


def test_below_the_budget_the_pull_vanishes() -> None:
    below = after(Budget(BUDGET, wall=1e6), 0.5 * BUDGET, 120)
    assert below.strength < 1e-9


def test_at_the_anchor_there_is_no_pull() -> None:
    assert after(Budget(BUDGET), 0.0).strength == 0.0


@pytest.mark.parametrize("estimate", [3 * BUDGET, 1e30])
def test_beyond_the_budget_the_pull_grows_within_bounds(estimate: float) -> None:
    first, later = after(Budget(BUDGET), estimate), after(Budget(BUDGET), estimate, 10_000)
    assert 1.0 < first.wall <= 3.0
    assert later.strength == 1e30
    assert math.isfinite(later.wall)


@pytest.mark.parametrize("estimate", [math.nan, math.inf])
def test_what_is_not_finite_is_ignored(estimate: float) -> None:
    budget = Budget(BUDGET, strength=3.0)
    assert budget.measured(estimate, BUDGET) == budget


def measured_at(estimates: list[float]) -> list[int]:
    """Return the steps at which the estimate is asked for."""
    budget, asked = Budget(BUDGET), []
    for step, estimate in enumerate(estimates):
        before = budget
        budget = budget.step(lambda estimate=estimate: estimate, lambda: BUDGET)
        if before.wait == 0:
            asked.append(step)
    return asked


def test_it_measures_seldom_where_the_estimate_changes_little() -> None:
    assert measured_at([BUDGET] * 64) == [0, 1, 3, 7, 15, 31, 47, 63]
    within = 0.1 * BUDGET
    assert measured_at([within * 1.2**step for step in range(5)]) == [0, 1, 2, 3, 4]
    assert measured_at([within * 1.06**step for step in range(11)]) == [0, 1, 3, 4, 6, 7, 9, 10]


def test_it_measures_every_step_well_beyond_the_budget() -> None:
    assert measured_at([1.1 * BUDGET] * 8) == [0, 1, 3, 7]
    assert measured_at([1.3 * BUDGET] * 8) == list(range(8))


@pytest.mark.parametrize("strength", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("speed", [0.01, 0.1])
def test_after_a_long_rest_the_pull_is_back_soon(strength: float, speed: float) -> None:
    """Training rests within the budget for as long as it likes, and then another task begins."""
    rested = Budget(BUDGET)
    for _ in range(10_000):
        rested = rested.step(lambda: 0.3 * BUDGET, lambda: BUDGET)
    ratios, _ = settled(strength, speed, steps=1000, budget=rested)
    assert max(ratios) < 20
    assert sum(ratio > 1.5 for ratio in ratios) < 100
    assert ratios[-1] == pytest.approx(1, rel=0.03)


def test_what_already_moves_towards_the_budget_is_left_to_it() -> None:
    assert after(Budget(BUDGET, estimate=0.01), 0.02).wall == 1.0
    assert after(Budget(BUDGET, estimate=0.2), 0.1).wall == 1.0
    assert after(Budget(BUDGET, estimate=0.2), 0.199).wall > 1.0
    assert after(Budget(BUDGET, estimate=0.2), 0.3).wall > 1.0
    assert after(Budget(BUDGET, estimate=0.04), 0.0401).wall < 1.0
    assert after(Budget(BUDGET, estimate=0.04), 0.03).wall < 1.0


def test_a_fixed_strength_measures_nothing() -> None:
    fixed = FixedStrength(3.0)
    measure = partial(pytest.fail, "measured")
    assert fixed.step(measure, measure) is fixed


def test_a_budget_of_nothing_is_refused_once_something_has_risen() -> None:
    assert Budget("auto").measured(0.0, 0.0).strength == 0.0
    with pytest.raises(ValueError, match=r"all of them are 0 .* give a budget in nats"):
        Budget("auto").measured(1e-9, 0.0)
