"""What the experiments on permuted MNIST share: their options, and how a learner is made."""

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ewc_paper.device import training_device
from ewc_paper.errors import RunError
from ewc_paper.experiments.accuracy_rows import mean_choosing_accuracy
from ewc_paper.experiments.experiment import Experiment
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
from ewc_paper.mnist.data import PIXELS, Data, load
from ewc_paper.mnist.learner import PermutedMnistLearner
from ewc_paper.mnist.tasks import PermutedTasks
from ewc_paper.options import option, values_of
from ewc_paper.runs.directory import RunDirectory

# What the columns of the paper's table share.
PAPER = {"batch_size": 10, "momentum": 0.0, "schedule": "constant", "average": 0.0}
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

    def strength_of(self, method: str) -> float:
        return self.l2_strength if method == "l2" else self.strength

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
