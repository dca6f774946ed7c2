"""Every experiment has a view, and draws its figures from a run directory alone."""

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest
from support.game_runs import make_games
from support.small_runs import MAKE, write_run

from ewc_paper.errors import RunError
from ewc_paper.experiments import SUMMARIES
from ewc_paper.experiments.view import Layout, Paper, seed_name, view_of
from ewc_paper.runs.directory import RunDirectory


def test_every_experiment_has_a_view(tmp_path: Path) -> None:
    for experiment in SUMMARIES:
        view = view_of(write_run(tmp_path / experiment, {"experiment": experiment}, {}))
        assert isinstance(view.LAYOUT, Layout)
        assert isinstance(view.PAPER, Paper)


@pytest.mark.parametrize("make", [*MAKE.values(), make_games], ids=[*MAKE, "games"])
def test_figures_are_written_into_the_run_directory(
    make: Callable[[Path], RunDirectory], tmp_path: Path
) -> None:
    run = make(tmp_path)
    figures = [file for file in view_of(run).draw(run) if file.suffix == ".png"]
    assert figures
    for figure in figures:
        assert figure.parent == tmp_path / "figures"
        assert matplotlib.image.imread(figure).std() > 0.01  # something is drawn


@pytest.mark.parametrize("make", [*MAKE.values(), make_games], ids=[*MAKE, "games"])
def test_what_is_drawn_is_what_the_figures_are_made_of(
    make: Callable[[Path], RunDirectory], tmp_path: Path
) -> None:
    run = make(tmp_path)
    drawn = {file.stem for file in view_of(run).draw(run, "svg") if file.suffix == ".svg"}
    found = view_of(run).figures(run)
    assert {figure.name for figure in found} - {"games-clips"} == drawn
    assert all(figure.title and figure.caption and figure.panels for figure in found)


def test_the_seed_of_a_part_is_in_its_config_or_its_name(tmp_path: Path) -> None:
    parts = {"a": ({"seed": 3}, []), "b": ({"recipe": {"seed": 4}}, []), "c": ({}, [])}
    run = write_run(tmp_path, {"experiment": "strength"}, parts)
    assert [seed_name(part) for part in run.parts()] == ["seed 3", "seed 4", "c"]


@pytest.mark.parametrize("experiment", ["alchemy", None, ["games"]])
def test_an_unknown_experiment_is_refused(experiment: object, tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=f"holds a run of {re.escape(str(experiment))}, which has no"
    ):
        view_of(write_run(tmp_path, {"experiment": experiment}, {}))
