"""What the experiments on permuted MNIST share: options, learners, rows."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import OPTIONS, end, write_data

from ewc_paper.errors import RunError
from ewc_paper.experiments.fisher_overlap import FisherOverlap
from ewc_paper.experiments.learning_curves import LearningCurves
from ewc_paper.experiments.permuted_mnist import (
    accuracy_row,
    average_accuracy,
    make_learner,
    make_tasks,
    task_ends,
)
from ewc_paper.experiments.strength import Strength
from ewc_paper.mnist.config import TasksConfig, TrainingConfig
from ewc_paper.runs.schema import SchemaError


def test_a_part_has_the_options_and_what_the_experiment_changes() -> None:
    config = LearningCurves.preset("quick", width=8, train_samples=50)
    part = config.part_config(method="sgd", seed=3, strength=5.0)
    assert {**part, "recipe": {}} == {
        "data": None,
        "train_samples": 50,
        "test_samples": None,
        "validation_samples": 0,
        "square": 28,
        "recipe": {},
    }
    recipe = TrainingConfig(**part["recipe"])
    assert (recipe.width, recipe.method, recipe.seed, recipe.strength) == (8, "sgd", 3, 5.0)


def test_what_an_experiment_does_not_offer_has_its_default() -> None:
    part = Strength.preset("quick").part_config()
    assert "validation_samples" not in part
    assert TrainingConfig(**part["recipe"]).strength == TrainingConfig.strength
    assert "square" not in FisherOverlap.preset("quick").part_config()
    assert TasksConfig().square == 28


def test_a_learner_is_made_from_the_json_of_its_part(tmp_path: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "data": str(write_data(tmp_path)), "square": 4}
    config = LearningCurves.preset("quick", **options, validation_samples=30)
    learner = make_learner(json.loads(json.dumps(config.part_config(seed=5, method="joint"))))
    assert learner.method.joint
    assert [len(split) for split in vars(learner.tasks.data).values()] == [120, 30, 40]
    moved = (learner.tasks.order(0) != torch.arange(784)).nonzero()
    assert 0 < len(moved) <= 16
    assert learner.tasks.seed == learner.config.seed == 5


def test_learners_of_one_worker_share_the_data(tmp_path: Path) -> None:
    config = LearningCurves.preset("quick", data=str(write_data(tmp_path)))
    first, second = (make_tasks(config.part_config(seed=seed)) for seed in (0, 1))
    assert first.data is second.data
    assert first.seed != second.seed


def test_a_network_too_large_for_memory_is_refused() -> None:
    with pytest.raises(RunError, match="choose a smaller --layers or --width"):
        Strength.preset("quick", layers=100, width=2000)


def test_a_row_has_one_accuracy_per_task_so_far() -> None:
    check = accuracy_row({"tasks": 2}, {})
    check(end(1, 0.9, 0.8, validation=[0.9, 0.8]))
    with pytest.raises(SchemaError, match=r"^accuracy: expected 2 values"):
        check(end(1, 0.9))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": 2}, "^task: expected a whole number from 0 to 1, got 2"),
        ({"accuracy": [1.5]}, "^accuracy.0: expected a number from 0 to 1, got 1.5"),
        ({"validation": [2]}, "^validation.0: expected"),
        ({"task_ended": 1}, "^task_ended: expected true or false, got 1"),
    ],
)
def test_other_rows_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        accuracy_row({"tasks": 2}, {})({**end(0, 0.9), **changes})


def test_averages_are_in_percent() -> None:
    assert average_accuracy(end(1, 0.9, 0.8)) == pytest.approx(85)
    assert math.isnan(average_accuracy(end(1, 0.9, 0.8, diverged=True)))


def test_rows_within_a_task_are_left_out() -> None:
    within = {**end(0, 0.5), "task_ended": False}
    assert task_ends([within, end(0, 0.9)]) == [end(0, 0.9)]
