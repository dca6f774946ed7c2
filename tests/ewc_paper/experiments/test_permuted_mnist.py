"""A part of permuted MNIST describes its tasks and its training, and is made from that alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import OPTIONS, write_data

from ewc_paper.errors import RunError
from ewc_paper.experiments.fisher_overlap.run import FisherOverlap
from ewc_paper.experiments.learning_curves.run import LearningCurves
from ewc_paper.experiments.permuted_mnist import make_learner, make_tasks
from ewc_paper.experiments.strength.run import Strength
from ewc_paper.mnist.config import TasksConfig, TrainingConfig


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
