"""What the experiments on permuted MNIST share: options, how a learner is made, rows of metrics."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ewc_paper.device import training_device
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.experiments.view import MAX_SEGMENTS, StoredConfig
from ewc_paper.figures.names import task_name
from ewc_paper.mnist.config import (
    DataConfig,
    FisherConfig,
    NetworkConfig,
    OptimizationConfig,
    PermutationConfig,
    PullConfig,
    TasksConfig,
    TrainingConfig,
    ValidationConfig,
)
from ewc_paper.mnist.data import PIXELS, Data, PermutedTasks, load
from ewc_paper.mnist.learner import PermutedMnistLearner
from ewc_paper.options import option, values_of
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.schema import Check, anything, flag, integer, list_of, number, optional, record

# What the columns of the paper's table share.
PAPER_TRAINING = {"batch_size": 10, "momentum": 0.0, "schedule": "constant", "average": 0.0}
MAX_WEIGHTS = 10**8  # 0.4 GB, and training with EWC takes about five times that


@dataclass(frozen=True, kw_only=True)
class PermutedMnist(Experiment, DataConfig, NetworkConfig, OptimizationConfig, FisherConfig):
    """Networks that learn permuted MNIST, each described by `part_config`."""

    score_means = "average validation (else test) accuracy over all tasks, in %, of all networks"

    def check(self) -> None:
        super().check()
        if self.data is not None and not Path(self.data).is_dir():
            raise RunError(f"--data must be a directory with IDX files, got {self.data}")
        weights = PIXELS * self.width + (self.layers - 1) * self.width**2
        if weights > MAX_WEIGHTS:
            raise RunError(
                f"a network of {self.layers} layers of {self.width} units has {weights:.2g} "
                f"weights, more than {MAX_WEIGHTS:.0e}: choose a smaller --layers or --width"
            )

    def score(self, run: RunDirectory) -> float | None:
        return mean_choosing_accuracy(run)

    def headline(self, row: MetricsRow) -> str:
        """The accuracy of each task: `task C · A 97.5 B 97.3 C 97.4`."""
        values = row.get("accuracy")
        if row.get("diverged") or not values:
            return super().headline(row)
        if len(values) > 6:
            return f"task {len(values)} · average {100 * sum(values) / len(values):.1f}"
        each = (f"{task_name(task)} {100 * value:.1f}" for task, value in enumerate(values))
        return f"task {task_name(row['task'])} · {' '.join(each)}"

    def is_milestone(self, row: MetricsRow) -> bool:
        return bool(row.get("task_ended"))

    def scalars(self, row: MetricsRow) -> dict[str, float]:
        accuracies = enumerate(row.get("accuracy", []))
        named = {f"accuracy_{task_name(task)}": value for task, value in accuracies}
        return named | super().scalars(row)

    def part_config(self, **changes: Any) -> dict[str, Any]:
        """What one learner is made from: its tasks, and its training under the key `recipe`.

        Args:
            changes: what the experiment chooses for this network, such as its method.
        """
        given = asdict(self) | changes
        return {**values_of(TasksConfig, given), "recipe": values_of(TrainingConfig, given)}


@dataclass(frozen=True, kw_only=True)
class MethodComparison(PermutedMnist, PullConfig, ValidationConfig, PermutationConfig):
    """Permuted MNIST learned by several methods."""

    l2_strength: float = option(0.05, "coefficient of the L2 baseline's uniform pull", low=0)

    kronecker_strength: float = option(
        10.0, "λ of EWC with Kronecker factors (the method kronecker)", low=0
    )

    def strength_of(self, method: str) -> float:
        """Return λ of a method."""
        own = {"l2": self.l2_strength, "kronecker": self.kronecker_strength}
        return own.get(method, self.strength)

    def check_validation(self) -> None:
        """Refuse to go without the images that early stopping and search look at."""
        if self.validation_samples == 0:
            raise RunError(
                "dropout's early stopping and search need --validation-samples of at least 1, got 0"
            )


def make_learner(config: dict[str, Any]) -> PermutedMnistLearner:
    """The learner that `part_config` describes."""
    return PermutedMnistLearner(make_tasks(config), TrainingConfig(**config["recipe"]))


def make_tasks(config: dict[str, Any]) -> PermutedTasks:
    """The tasks that `part_config` describes."""
    tasks = TasksConfig(**values_of(TasksConfig, config))
    data = _load(tasks.data, tasks.train_samples, tasks.test_samples, tasks.validation_samples)
    return PermutedTasks(data, config["recipe"]["seed"], tasks.square)


@lru_cache(maxsize=1)
def _load(directory: str | None, train: int | None, test: int | None, validation: int) -> Data:
    """A worker runs many learners on the same data: read it once, and move it once."""
    data = load(directory, train_samples=train, test_samples=test, validation_samples=validation)
    return data.to(training_device())


def accuracy_row(run: StoredConfig, part: StoredConfig) -> Check:
    """Return the check of a row; the argument `row` of a Layout."""
    tasks = run.get("tasks", MAX_SEGMENTS)
    accuracies = list_of(number(0, 1), 1, tasks)
    fields = record(
        task=integer(0, tasks - 1),
        epoch=number(0),
        task_ended=flag,
        accuracy=accuracies,
        validation=optional(accuracies),
    )

    def check(row: MetricsRow) -> None:
        fields(row)
        tasks_so_far = row["task"] + 1
        record(accuracy=list_of(anything, tasks_so_far, tasks_so_far))(row)

    return check


def task_ends(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Select the rows that were measured at the end of a task."""
    return [row for row in rows if row["task_ended"]]


def average_accuracy(row: MetricsRow) -> float:
    """Average over all tasks so far, in percent; NaN if the network diverged."""
    return math.nan if row.get("diverged") else 100 * float(np.mean(row["accuracy"]))


def choosing_accuracy(row: MetricsRow) -> float:
    """Average over all tasks so far, in percent, on what options may be chosen by.

    These are the validation images, or the test images of a run that holds none out. A network that
    diverged counts as 0.
    """
    if row.get("diverged"):
        return 0.0
    return 100 * float(np.mean(row.get("validation") or row["accuracy"]))


def mean_choosing_accuracy(run: RunDirectory) -> float | None:
    """The mean over networks of their `choosing_accuracy` after the last task that has ended."""
    ends = [ends[-1] for part in run.parts() if (ends := task_ends(_accuracies(part)))]
    return float(np.mean([choosing_accuracy(row) for row in ends])) if ends else None


def _accuracies(part: RunDirectory) -> list[MetricsRow]:
    """The rows of a part that have accuracies; others may be measured beside them."""
    return [row for row in part.rows() if "accuracy" in row]
