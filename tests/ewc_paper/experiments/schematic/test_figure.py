"""The schematic is drawn as far as the run has come."""

from pathlib import Path
from typing import Any

import pytest
from support.small_runs import make_schematic, write_run
from support.views import DIVERGED, as_text, assert_only_diverged

from ewc_paper.experiments.schematic import figure


def test_the_table_has_the_loss_of_both_tasks(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_schematic(tmp_path)))
    assert all(value in shown for value in ("task A first", "EWC", "0.125", "0.500"))


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_run_that_has_just_begun_is_shown_too(rows: int, tmp_path: Path) -> None:
    run = make_schematic(tmp_path / "whole")
    begun = write_run(
        tmp_path / "begun",
        {"experiment": "schematic"},
        {"schematic": ({}, run.part("schematic").rows()[:rows])},
    )
    assert len(figure.draw(begun)) == min(rows, 1)
    assert figure.table(begun).row_count == max(0, rows - 1)


def test_a_landscape_without_any_low_loss_is_drawn(tmp_path: Path) -> None:
    high = {"across": [0, 1], "up": [0, 1], "loss_a": [[9, 9], [9, 9]], "loss_b": [[9, 9], [9, 9]]}
    run = write_run(tmp_path, {"experiment": "schematic"}, {"schematic": ({}, [high])})
    assert len(figure.draw(run)) == 1


@pytest.mark.filterwarnings("error")
def test_a_trajectory_that_diverged_says_so_instead_of_a_number(tmp_path: Path, drawn: Any) -> None:
    way = {"way": "A", "points": [[-2, -2], [9, 9]], "loss_a": 9.8, "loss_b": 9.8, **DIVERGED}
    landscape = make_schematic(tmp_path / "whole").part("schematic").rows()[0]
    rows = {"schematic": ({}, [landscape, way])}
    run = write_run(tmp_path / "diverged", {"experiment": "schematic"}, rows)
    assert_only_diverged(figure.table(run), ["diverged"] * 2)
    figure.draw(run)
    assert drawn.legends["schematic"] == ["task A first (diverged)"]
