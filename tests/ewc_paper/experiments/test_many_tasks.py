"""Every method gets its own options, and a sweep chooses for each method and number of tasks."""

from pathlib import Path
from typing import Any

import pytest
from support.runs import DIVERGED, as_text, assert_only_diverged, end, make_many_tasks, write_run

from ewc_paper.errors import RunError
from ewc_paper.experiments import many_tasks
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.experiments.view import check_run, draw
from ewc_paper.figures.names import METHOD_LABELS
from ewc_paper.figures.plot import draw_figures
from ewc_paper.runs.directory import RunDirectory


def recipes(**changes: Any) -> dict[str, dict[str, Any]]:
    parts = ManyTasks.preset("quick", **changes).parts()
    return {part.name: part.config["recipe"] for part in parts}


def test_dropout_has_a_rate_and_epochs_of_its_own() -> None:
    made = recipes(lr=0.1, epochs=2, dropout_lr=0.02, dropout_epochs=7)
    found = {name: (recipe["lr"], recipe["epochs"]) for name, recipe in made.items()}
    assert found["dropout-0-seed0"] == (0.02, 7)
    assert found["ewc-0-seed0"] == found["sgd-0-seed0"] == (0.1, 2)


def test_the_dashed_line_is_plain_training_on_one_task() -> None:
    single = recipes(tasks=5)["single-0-seed0"]
    assert (single["method"], single["tasks"]) == ("sgd", 1)


def test_l2_has_a_strength_of_its_own() -> None:
    made = recipes(methods=("ewc", "l2"), strength=9.0, l2_strength=0.5)
    assert made["ewc-0-seed0"]["strength"] == 9.0
    assert made["l2-0-seed0"]["strength"] == 0.5


def test_a_sweep_chooses_by_validation_for_each_method_and_number_of_tasks(tmp_path: Path) -> None:
    config = ManyTasks.preset("quick", methods=("single", "ewc"))
    points = config.points(make_many_tasks(tmp_path))
    assert points == {"single-1": 98.0, "ewc-1": 90.0, "ewc-2": pytest.approx(80.0)}
    assert next(iter(points)) == "single-1"  # in the order of the options
    assert config.alone("ewc-2") == ("ewc", {"methods": ("ewc",)})


def test_the_table_has_the_averages(tmp_path: Path) -> None:
    shown = as_text(many_tasks.table(make_many_tasks(tmp_path)))
    assert all(value in shown for value in ("single task", "98.00", "90.00", "85.00"))


def run_of(path: Path, label: str, seed: int, *averages: float) -> RunDirectory:
    rows = [end(task, *[value] * (task + 1)) for task, value in enumerate(averages)]
    part = {"label": label, "seed": seed}
    return write_run(path, {"experiment": "many-tasks"}, {label: (part, rows)})


def test_of_a_sweep_each_number_of_tasks_shows_the_trial_chosen_for_it(
    tmp_path: Path, drawn: Any
) -> None:
    one = [run_of(tmp_path / f"one{seed}", "ewc", seed, 0.9, 0.5) for seed in (5, 6)]
    two = [run_of(tmp_path / "two", "ewc", 5, 0.4, 0.8)]
    dropout = [run_of(tmp_path / "3", "dropout", 5, 0.7)]
    chosen = {"ewc-1": one, "ewc-2": two, "dropout-1": dropout}
    results = many_tasks.best_averages(chosen)
    assert results["ewc"] == {1: {"seed 5": 90.0, "seed 6": 90.0}, 2: {"seed 5": 80.0}}
    assert results["dropout"] == {1: {"seed 5": pytest.approx(70.0)}}
    assert all(value in as_text(many_tasks.best_table(chosen)) for value in ("90.00", "80.00"))
    draw_figures(many_tasks.best_figures(chosen), tmp_path)
    assert drawn.legends["many-tasks"] == ["EWC", "SGD + dropout"]


def test_an_old_run_that_searched_is_not_taken_for_seeds(tmp_path: Path) -> None:
    config = {"experiment": "many-tasks", "search": 50}
    run = write_run(tmp_path, config, {"ewc-0": ({"label": "ewc"}, [end(0, 0.9)])})
    with pytest.raises(RunError, match="search: expected a whole number from 0 to 0, got 50"):
        check_run(run)


@pytest.mark.parametrize("methods", [("sgd", "ewc", "l2"), ("l2", "ewc", "sgd")])
def test_methods_are_in_the_order_given(
    methods: tuple[str, ...], tmp_path: Path, drawn: Any
) -> None:
    parts = {m: ({"label": m}, [end(0, 0.9)]) for m in methods}
    config = {"experiment": "many-tasks", "methods": list(methods)}
    draw(many_tasks, write_run(tmp_path, config, parts))
    assert drawn.legends["many-tasks"] == [METHOD_LABELS[method] for method in methods]


@pytest.mark.filterwarnings("error")
def test_a_network_that_diverged_says_so_instead_of_a_number(tmp_path: Path, drawn: Any) -> None:
    parts = {
        f"ewc-{seed}": (
            {"label": "ewc"},
            [end(0, 0.9), end(1, 0.098, 0.098, **DIVERGED) if seed else end(1, 0.9, 0.8)],
        )
        for seed in (0, 1)
    }
    run = write_run(tmp_path, {"experiment": "many-tasks"}, parts)
    assert_only_diverged(many_tasks.table(run), ["85.00 (1 of 2 diverged)"])
    draw(many_tasks, run)
    assert drawn.legends["many-tasks"] == ["EWC (some diverged)"]
