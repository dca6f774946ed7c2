"""Points are chosen by validation losses and reported by test losses."""

import math

import pytest

from benchmarks.frontier import (
    COSTS,
    Point,
    Tuning,
    at_cost,
    at_loss,
    frontier,
    kept,
    summary,
    tunings,
)


def point(new: float, old: float) -> Point:
    """A point whose test losses are larger by 10 (new) and 20 (old)."""
    return Point(new, old, new + 10, old + 20)


def row(seed: int, method: str, value: float, *points: tuple[float, float]) -> dict[str, object]:
    losses = [
        {"new": new, "old": old, "new_test": new + 10, "old_test": old + 20} for new, old in points
    ]
    return {"seed": seed, "method": method, "value": value, "points": losses}


def rows(seed: int) -> list[dict[str, object]]:
    return [
        row(seed, "untrained", 0, (8.0, 8.0)),
        row(seed, "before", 0, (5.0, 2.0)),
        row(seed, "plain", 0, (4.0, 2.5), (3.0, 4.0), (3.1, 5.0)),
        row(seed, "ewc", 100, (4.0, 2.1)),
        row(seed, "ewc", 1, (3.0, 3.0)),  # not in the order of the values
        row(seed, "l2", 1, (3.0, 3.5)),
        row(seed, "l2", 2, (4.0, 2.3)),
    ]


def test_the_frontier_has_no_point_that_another_beats() -> None:
    best, middle, last = point(1.0, 5.0), point(2.0, 4.0), point(3.0, 1.0)
    beaten = point(2.5, 4.5)
    assert frontier([last, beaten, best, middle]) == [best, middle, last]


def test_test_losses_choose_nothing() -> None:
    lucky = Point(2.0, 4.0, -99.0, -99.0)
    assert lucky not in frontier([lucky, point(1.0, 3.0)])


def test_between_two_points_all_losses_are_interpolated() -> None:
    found = at_loss([point(1.0, 5.0), point(3.0, 1.0)], 1.5)
    assert found is not None
    assert found.values() == pytest.approx((1.5, 4.0, 11.5, 24.0))
    assert at_loss([point(1.0, 5.0), point(3.0, 1.0)], 0.9) is None
    assert at_loss([point(1.0, 5.0), point(3.0, 1.0)], 3.1) == point(3.0, 1.0)
    assert at_loss([], 1.0) is None


def test_plain_training_counts_at_its_best_step() -> None:
    tuning = tunings(rows(0))[0]
    assert tuning.plain == point(3.0, 4.0)
    assert len(tuning.lines["early stopping"]) == 3
    assert [p.new for p in tuning.lines["ewc"]] == [3.0, 4.0]  # by value


def test_a_seed_without_plain_training_is_left_out() -> None:
    assert set(tunings([*rows(0), *rows(1)[:2]])) == {0}


def test_a_cost_is_a_share_of_the_perplexity() -> None:
    tuning = tunings(rows(0))[0]
    found = at_cost(tuning, "ewc", 0.05)
    assert found is not None
    assert math.exp(found.new) == pytest.approx(1.05 * math.exp(3.0))
    assert found.old_test == pytest.approx(23.0 - 0.9 * math.log(1.05))
    assert at_cost(tuning, "never run", 0.05) is None


def test_the_share_that_is_kept() -> None:
    before, plain = point(5.0, 2.0), point(3.0, 4.0)
    tuning = Tuning(point(8.0, 8.0), before, plain, {})
    assert kept(tuning, before) == 1
    assert kept(tuning, plain) == 0
    assert kept(tuning, point(3.5, 2.5)) == pytest.approx(0.75)


def test_the_tables_say_how_far_ewc_lies_below() -> None:
    references, methods, advantages = summary(tunings([*rows(0), *rows(1)]))
    assert [r["model"] for r in references.rows] == [
        "untrained",
        "before fine-tuning",
        "plain fine-tuning",
    ]
    assert [r["method"] for r in methods.rows] == ["early stopping", "ewc", "l2"]
    gaps = [0.5 - 0.3 * math.log1p(cost) for cost in COSTS]  # both lines are straight
    below_l2 = advantages.rows[0]
    assert below_l2["line"] == "ewc below l2"
    assert float(str(below_l2["mean"])) == pytest.approx(sum(gaps) / len(gaps), abs=1e-4)
    assert len(str(below_l2["by seed"]).split()) == 2


def test_a_method_that_some_seeds_lack_says_so() -> None:
    methods = summary(tunings([*rows(0), *rows(1), row(1, "replay", 0.1, (3.0, 2.2))]))[1]
    replay = next(r for r in methods.rows if str(r["method"]).startswith("replay"))
    assert replay["method"] == "replay (seeds: 1)"
    assert str(replay["+2%"]).startswith("22.1")


def test_the_default_is_shown_as_it_comes() -> None:
    found = tunings([*rows(0), *rows(1), row(1, "default", 0, (3.0 + math.log(1.04), 2.8))])
    (as_it_comes,) = summary(found)[2].rows
    assert as_it_comes["kept, by seed"] == "60.0%"
    assert as_it_comes["cost, by seed"] == "+4.0%"


def test_a_method_that_did_not_learn_enough_has_empty_cells() -> None:
    poor = row(0, "lora", 1, (3.15, 2.0))
    methods = summary(tunings([*rows(0), poor]))[1]
    lora = next(r for r in methods.rows if r["method"] == "lora")
    assert lora["+5%"] == ""
    assert lora["+20%"] != ""
