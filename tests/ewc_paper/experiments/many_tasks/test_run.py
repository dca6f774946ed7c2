"""Every method gets its own options, and a sweep chooses for each method and number of tasks."""

from pathlib import Path
from typing import Any

import pytest
from support.small_runs import make_many_tasks

from ewc_paper.experiments.many_tasks.run import ManyTasks


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
