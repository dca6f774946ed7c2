"""Many tasks: the combination shown is chosen by validation, for each number of tasks."""

from pathlib import Path
from typing import Any

import pytest
from support.small_runs import end, make_many_tasks, write_run
from support.views import DIVERGED, as_text, assert_only_diverged

from ewc_paper.experiments.many_tasks import figure
from ewc_paper.figures.names import METHOD_LABELS


def test_the_table_has_the_averages(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_many_tasks(tmp_path)))
    assert all(value in shown for value in ("single task", "98.00", "90.00", "70.00"))


def test_the_best_combination_is_chosen_by_validation_for_each_number_of_tasks(
    tmp_path: Path,
) -> None:
    results = figure.averages(make_many_tasks(tmp_path))
    assert results["ewc"] == {1: {"ewc-0": 90.0}, 2: {"ewc-1": pytest.approx(70.0)}}
    assert results["single"] == {1: {"single": 98.0}}


@pytest.mark.parametrize("methods", [("sgd", "ewc", "l2"), ("l2", "ewc", "sgd")])
def test_methods_are_in_the_order_given(
    methods: tuple[str, ...], tmp_path: Path, drawn: Any
) -> None:
    parts = {m: ({"label": m, "combination": 0}, [end(0, 0.9)]) for m in methods}
    config = {"experiment": "many-tasks", "methods": list(methods)}
    figure.draw(write_run(tmp_path, config, parts))
    assert drawn.legends["many-tasks"] == [METHOD_LABELS[method] for method in methods]


@pytest.mark.filterwarnings("error")
def test_a_network_that_diverged_says_so_instead_of_a_number(tmp_path: Path, drawn: Any) -> None:
    parts = {
        f"ewc-{seed}": (
            {"label": "ewc", "combination": 0},
            [end(0, 0.9), end(1, 0.098, 0.098, **DIVERGED) if seed else end(1, 0.9, 0.8)],
        )
        for seed in (0, 1)
    }
    run = write_run(tmp_path, {"experiment": "many-tasks"}, parts)
    assert_only_diverged(figure.table(run), ["85.00 (1 of 2 diverged)"])
    figure.draw(run)
    assert drawn.legends["many-tasks"] == ["EWC (some diverged)"]
