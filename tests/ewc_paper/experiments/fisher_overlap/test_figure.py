"""Fisher overlap: one line per square, in the order of the options."""

from pathlib import Path
from typing import Any

import pytest
from support.small_runs import end, make_fisher_overlap, write_run
from support.views import DIVERGED, as_text, assert_markers_are_whole, assert_only_diverged

from ewc_paper.experiments.fisher_overlap import figure


def test_the_table_has_the_overlap_of_each_layer(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_fisher_overlap(tmp_path)))
    assert all(value in shown for value in ("26×26", "25.00", "50.00"))


def test_a_marker_at_one_is_whole(tmp_path: Path, drawn: Any) -> None:
    parts = {"8": ({"square": 8}, [{"overlap": [1.0, 1.0]}])}
    figure.draw(write_run(tmp_path, {"experiment": "fisher-overlap"}, parts))
    (ax,) = drawn.panels["fisher-overlap"]
    assert_markers_are_whole(ax)


def test_squares_are_in_the_order_given(tmp_path: Path, drawn: Any) -> None:
    parts = {f"{s}": ({"square": s}, [{"overlap": [0.5]}]) for s in (8, 26)}
    config = {"experiment": "fisher-overlap", "squares": [26, 8]}
    figure.draw(write_run(tmp_path, config, parts))
    assert drawn.legends["fisher-overlap"] == ["26×26 pixels permuted", "8×8 pixels permuted"]


@pytest.mark.filterwarnings("error")
def test_a_network_that_diverged_says_so_instead_of_a_number(tmp_path: Path) -> None:
    parts = {"8": ({"square": 8, "recipe": {"layers": 1}}, [end(0, 0.098, **DIVERGED)])}
    run = write_run(tmp_path, {"experiment": "fisher-overlap"}, parts)
    assert_only_diverged(figure.table(run), ["diverged"] * 2)
    assert len(figure.draw(run)) == 1
