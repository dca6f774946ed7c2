"""One network per method, measured during training."""

from pathlib import Path
from typing import Any

import pytest
from support.runs import (
    DIVERGED,
    as_text,
    assert_only_diverged,
    cells,
    end,
    make_learning_curves,
    write_run,
)

from ewc_paper.errors import RunError
from ewc_paper.experiments import learning_curves
from ewc_paper.experiments.learning_curves import LearningCurves
from ewc_paper.experiments.view import check_run, draw
from ewc_paper.figures.names import METHOD_LABELS


def test_every_method_is_a_part_with_its_own_strength() -> None:
    parts = LearningCurves.preset("quick", strength=7.0, l2_strength=0.5).parts()
    found = {part.name: part.config["recipe"] for part in parts}
    assert {name: recipe["method"] for name, recipe in found.items()} == {
        "ewc": "ewc",
        "l2": "l2",
        "sgd": "sgd",
    }
    assert [found[name]["strength"] for name in ("ewc", "l2")] == [7.0, 0.5]
    assert all(recipe["curves"] for recipe in found.values())


def test_more_tasks_than_the_figure_has_panels_are_refused() -> None:
    LearningCurves.preset("quick", tasks=100)
    with pytest.raises(RunError, match="--tasks must be at most 100, got 101"):
        LearningCurves.preset("quick", tasks=101)


CONFIG = {"experiment": "learning-curves", "epochs": 2, "tasks": 2}


def test_the_table_has_the_accuracies_after_each_task(tmp_path: Path) -> None:
    shown = as_text(learning_curves.table(make_learning_curves(tmp_path)))
    assert all(value in shown for value in ("EWC", "97.00", "61.00", "98.10"))


def test_the_curve_of_a_task_starts_with_its_training(tmp_path: Path, drawn: Any) -> None:
    draw(learning_curves, make_learning_curves(tmp_path))
    first, second = drawn.panels["learning-curves"]
    assert list(first.lines[0].get_xdata()) == [2.0, 4.0]
    assert list(first.lines[0].get_ydata()) == pytest.approx([97, 61])
    assert list(second.lines[0].get_ydata()) == pytest.approx([98.1])


@pytest.mark.parametrize("methods", [("sgd", "ewc", "l2"), ("l2", "ewc", "sgd")])
def test_methods_are_in_the_order_given(
    methods: tuple[str, ...], tmp_path: Path, drawn: Any
) -> None:
    names = [METHOD_LABELS[method] for method in methods]
    config = {**CONFIG, "tasks": 1, "methods": list(methods)}
    run = write_run(tmp_path, config, {m: ({}, [end(0, 0.9)]) for m in methods})
    draw(learning_curves, run)
    assert drawn.legends["learning-curves"] == names
    assert cells(learning_curves.table(run))[: len(methods)] == names


def test_a_run_that_has_just_begun_is_shown_too(tmp_path: Path) -> None:
    run = write_run(tmp_path, CONFIG, {"ewc": ({}, [])})
    assert len(draw(learning_curves, run)) == 1
    assert learning_curves.table(run).row_count == 0


@pytest.mark.filterwarnings("error")
def test_a_network_that_diverged_says_so_instead_of_a_number(tmp_path: Path, drawn: Any) -> None:
    rows = [end(0, 0.97), end(1, 0.098, 0.098, **DIVERGED)]
    run = write_run(tmp_path, CONFIG, {"ewc": ({}, rows)})
    assert_only_diverged(learning_curves.table(run), ["diverged", "diverged"])
    draw(learning_curves, run)
    assert drawn.legends["learning-curves"] == ["EWC (diverged)"]


def test_a_part_under_the_name_of_another_is_named(tmp_path: Path) -> None:
    parts = {"ewc": ({"recipe": {"method": "sgd"}}, [end(0, 0.97)])}
    with pytest.raises(RunError, match="ewc cannot be drawn: expected one of sgd, got ewc"):
        check_run(write_run(tmp_path, CONFIG, parts))
