"""The figure has a thick line for the mean over seeds, and a file."""

from pathlib import Path

from benchmarks.frontier import Point, Tuning
from benchmarks.frontier_figure import LOOKS_LIKE, draw, mean_line
from benchmarks.tuning_methods import VALUES
from ewc_paper.figures.style import LOOKS


def line(shift: float) -> list[Point]:
    return [Point(1.0, 2.0, 3.0 + shift, 4.0), Point(2.0, 1.0, 4.0 + shift, 3.0)]


def test_the_mean_is_taken_value_by_value() -> None:
    assert mean_line([line(0.0), line(1.0)]) == line(0.5)


def test_no_mean_while_a_seed_is_incomplete() -> None:
    assert mean_line([line(0.0), line(1.0)[:1]]) == []


def test_every_method_has_a_look_of_its_own() -> None:
    assert set(VALUES) < set(LOOKS_LIKE)
    assert len({LOOKS[look].color for look in LOOKS_LIKE.values()}) == len(LOOKS_LIKE)


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    def tuning(shift: float) -> Tuning:
        first, last = line(shift)
        return Tuning(last, last, first, {"ewc": line(shift), "ewc kind=empirical": line(shift)})

    file = draw({0: tuning(0.0), 1: tuning(1.0)}, tmp_path / "frontier.png")
    assert file.stat().st_size > 10_000
