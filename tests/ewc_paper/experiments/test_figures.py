"""Tables and figures come from run directories alone, and show the numbers that are there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from rich.console import Console
from support.small_runs import (
    end,
    make_fisher_overlap,
    make_learning_curves,
    make_many_tasks,
    make_perturbation,
    make_recognition,
    make_schematic,
    make_strength,
    write_run,
)

from ewc_paper.errors import RunError
from ewc_paper.experiments.many_tasks import figure as many_tasks
from ewc_paper.experiments.strength import figure as strength
from ewc_paper.experiments.view import view_of
from ewc_paper.runs.directory import RunDirectory


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (make_learning_curves, ["EWC", "97.00", "61.00", "98.10"]),
        (make_many_tasks, ["single task", "98.00", "90.00", "70.00"]),
        (make_strength, ["proximal", "87.50 ± 3.54"]),
        (make_fisher_overlap, ["26×26", "25.00", "50.00"]),
        (make_schematic, ["EWC", "0.125", "0.500"]),
        (make_recognition, ["92.00", "3.00", "1.50", "12.00", "0.12"]),
        (make_perturbation, ["inverse Fisher", "100.25 ± 0.35", "59.65 ± 0.35", "18.25 ± 0.35"]),
    ],
)
def test_a_run_is_shown_from_its_directory(make: Any, shown: list[str], tmp_path: Path) -> None:
    run = make(tmp_path)
    console = Console(width=120, record=True)
    console.print(view_of(run).table(run))
    text = console.export_text()
    assert all(value in text for value in shown)
    (figure,) = view_of(run).draw(run)
    assert figure.parent == tmp_path / "figures"
    picture = matplotlib.image.imread(figure)
    assert picture.std() > 0.01  # something is drawn


def test_the_best_combination_is_chosen_by_validation_for_each_number_of_tasks(
    tmp_path: Path,
) -> None:
    results = many_tasks.averages(make_many_tasks(tmp_path))
    assert results["ewc"] == {1: [90.0], 2: [pytest.approx(70.0)]}
    assert results["single"] == {1: [98.0]}


def test_strengths_are_in_order_with_a_value_a_seed(tmp_path: Path) -> None:
    results = strength.averages(make_strength(tmp_path))
    assert {k: sorted(v) for k, v in results["proximal"].items()} == {
        1.0: pytest.approx([85.0, 90.0]),
        10.0: pytest.approx([85.0, 90.0]),
    }
    assert list(results["proximal"]) == [1.0, 10.0]


def test_a_run_that_has_just_begun_is_shown_too(tmp_path: Path) -> None:
    run = write_run(
        tmp_path, {"experiment": "learning-curves", "epochs": 2, "tasks": 2}, {"ewc": ({}, [])}
    )
    assert len(view_of(run).draw(run)) == 1
    assert view_of(run).table(run).row_count == 0


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_schematic_that_has_just_begun_is_shown_too(rows: int, tmp_path: Path) -> None:
    run = make_schematic(tmp_path / "whole")
    begun = write_run(
        tmp_path / "begun",
        {"experiment": "schematic"},
        {"schematic": ({}, run.part("schematic").rows()[:rows])},
    )
    assert len(view_of(begun).draw(begun)) == min(rows, 1)
    assert view_of(begun).table(begun).row_count == max(0, rows - 1)


def test_a_landscape_without_any_low_loss_is_drawn(tmp_path: Path) -> None:
    high = {"across": [0, 1], "up": [0, 1], "loss_a": [[9, 9], [9, 9]], "loss_b": [[9, 9], [9, 9]]}
    run = write_run(tmp_path, {"experiment": "schematic"}, {"schematic": ({}, [high])})
    assert len(view_of(run).draw(run)) == 1


DIVERGED = {"diverged": True}


def diverged_runs(path: Path) -> Iterator[tuple[RunDirectory, list[str]]]:
    """Runs with a network that diverged in its last task, and the cells that are to say so."""
    curves = {"ewc": ({}, [end(0, 0.97), end(1, 0.098, 0.098, **DIVERGED)])}
    config = {"experiment": "learning-curves", "epochs": 2, "tasks": 2}
    yield write_run(path / "curves", config, curves), ["diverged", "diverged"]
    many = {
        f"ewc-{seed}": (
            {"label": "ewc", "combination": 0},
            [end(0, 0.9), end(1, 0.098, 0.098, **DIVERGED) if seed else end(1, 0.9, 0.8)],
        )
        for seed in (0, 1)
    }
    yield write_run(path / "many", {"experiment": "many-tasks"}, many), ["85.00 (1 of 2 diverged)"]
    ways = {
        how: (
            {"recipe": {"how": how, "strength": 1.0, "tasks": 1}},
            [end(0, 0.098, **DIVERGED) if how == "gradient" else end(0, 0.9)],
        )
        for how in ("proximal", "gradient")
    }
    yield write_run(path / "strength", {"experiment": "strength", "tasks": 1}, ways), ["diverged"]
    overlap = {"8": ({"square": 8, "recipe": {"layers": 1}}, [end(0, 0.098, **DIVERGED)])}
    yield write_run(path / "overlap", {"experiment": "fisher-overlap"}, overlap), ["diverged"] * 2
    way = {"way": "A", "points": [[-2, -2], [9, 9]], "loss_a": 9.8, "loss_b": 9.8, **DIVERGED}
    landscape = make_schematic(path / "schematic").part("schematic").rows()[0]
    rows = {"schematic": ({}, [landscape, way])}
    yield write_run(path / "way", {"experiment": "schematic"}, rows), ["diverged"] * 2


@pytest.mark.filterwarnings("error")
def test_a_network_that_diverged_says_so_instead_of_a_number(tmp_path: Path) -> None:
    for run, said in diverged_runs(tmp_path):
        table = view_of(run).table(run)
        cells = [str(cell) for column in table.columns for cell in column.cells]
        assert [cell for cell in cells if "diverged" in cell] == said, run.path
        assert not any("9.8" in cell for cell in cells)
        assert len(view_of(run).draw(run)) == 1


def test_an_unknown_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds a run of alchemy"):
        view_of(write_run(tmp_path, {"experiment": "alchemy"}, {}))
