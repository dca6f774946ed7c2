"""The section of a run has its figures as data, its tables, its options and its command."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.game_runs import make_games
from support.small_runs import MAKE, make_learning_curves, write_run

from ewc_paper.errors import RunError
from ewc_paper.experiments.view import view_of
from ewc_paper.page.sections import run_section
from ewc_paper.runs.directory import RunDirectory

ROOM = 10**6


def panels(section: str) -> list[list[dict[str, Any]]]:
    """The panels of each figure, as page.js reads them."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', section)
    return [json.loads(one)["panels"] for one in found]


@pytest.mark.parametrize("make", [*MAKE.values(), make_games], ids=[*MAKE, "games"])
def test_every_experiment_has_all_of_its_figures(
    make: Callable[[Path], RunDirectory], tmp_path: Path
) -> None:
    run = make(tmp_path)
    section = run_section(run, "heading", "run0", ROOM)
    expected = [[panel.title for panel in one.panels] for one in view_of(run).figures(run)]
    assert [[panel["title"] for panel in one] for one in panels(section)] == expected
    assert view_of(run).PAPER.place in section
    assert "<table>" in section


def test_the_data_are_those_of_the_metrics(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path)
    ((first, second),) = panels(run_section(run, "heading", "run0", ROOM))
    rows = run.part("ewc").rows()
    ewc = first["series"][0]
    assert ewc["mean"] == pytest.approx([100 * row["accuracy"][0] for row in rows])
    assert ewc["x"] == [row["task"] * 2 + row["epoch"] for row in rows]
    assert second["series"][0]["mean"] == pytest.approx([98.1])


def test_texts_of_a_run_are_shown_and_not_run(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    config = {"experiment": "perturbation", "game": evil, evil: evil, "versions": {evil: evil}}
    rows = [{"kind": "noise", "shape": "uniform", "scale": 0.1, "scores": [1.0]}]
    run = write_run(tmp_path, config, {"seed0": ({}, rows)})
    section = run_section(run, evil, "run0", ROOM)
    assert evil not in section
    assert "alert(1)" in section
    assert "<script" not in re.sub(r'<script type="application/json">', "", section)


def test_a_figure_that_is_too_large_is_left_out_and_named(tmp_path: Path) -> None:
    section = run_section(make_learning_curves(tmp_path), "heading", "run0", 100)
    assert panels(section) == []
    assert "too large for the page" in section
    assert "97.00" in section


def test_a_run_says_whether_it_is_going_on_and_how_far_it_is(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path)
    assert "not running" in run_section(run, "heading", "run0", ROOM)
    with run.locked():
        section = run_section(run, "heading", "run0", ROOM)
    assert "<dd>running</dd>" in section
    assert "<dd>2 of 3</dd>" in section


@pytest.mark.parametrize("experiment", MAKE)
def test_a_run_that_has_just_begun_is_shown_too(experiment: str, tmp_path: Path) -> None:
    needed = {"tasks": 2, "epochs": 2, "game": "Pong", "games": ["Pong"]}
    run = write_run(tmp_path, {"experiment": experiment, **needed}, {})
    assert "No measurement yet" in run_section(run, "heading", "run0", ROOM)


def test_options_of_another_version_have_no_command(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "lr": -1}))
    section = run_section(run, "heading", "run0", ROOM)
    assert "do not fit this version" in section
    assert "--lr must be at least" in section
    assert "<dd>2</dd>" in section


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path)
    run.part("ewc").append({"task": 9})
    with pytest.raises(RunError, match="task: expected a whole number"):
        run_section(run, "heading", "run0", ROOM)
