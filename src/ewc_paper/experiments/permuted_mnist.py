"""What the experiments on permuted MNIST share: their options, and how a learner is made."""

from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from ewc.fisher.likelihood import Kind
from ewc.step_size import How
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Config
from ewc_paper.mnist.config import Recipe
from ewc_paper.mnist.data import PIXELS, SIDE, Data, load
from ewc_paper.mnist.learner import Learner
from ewc_paper.mnist.tasks import PermutedTasks
from ewc_paper.options import MANY, option

# What the columns of the paper's table share; it does not tell the batch size, λ and L2's strength.
PAPER = {"batch_size": 10, "momentum": 0.0, "schedule": "constant", "average": 0.0}
MAX_WEIGHTS = 10**8  # 0.4 GB, and training with EWC takes about five times that


@dataclass(frozen=True, kw_only=True)
class PermutedMnist(Config):
    """Options of the data, the network and its training; the rates are those of SGD."""

    data: str | None = option(
        None, "directory of an IDX data set of MNIST's shape; MNIST itself without"
    )
    train_samples: int | None = option(
        None, "use only the first so many training images", low=1, high=MANY
    )
    test_samples: int | None = option(
        None, "test on only the first so many images", low=1, high=MANY
    )
    validation_samples: int = option(
        0, "training images held out for early stopping and search", low=0, high=MANY
    )
    square: int = option(
        SIDE, "side of the centred square of pixels that is permuted", low=1, high=SIDE
    )
    tasks: int = option(3, "number of tasks, learned one after another", low=1, high=100)
    layers: int = option(2, "hidden layers", low=1, high=100)
    width: int = option(400, "units a hidden layer", low=1, high=100_000)
    epochs: int = option(5, "epochs a task", low=1, high=MANY)
    batch_size: int = option(64, "images a gradient step", low=1, high=MANY)
    optimizer: str = option("sgd", "optimizer", choices=("sgd", "adam"))
    lr: float = option(0.1, "learning rate at the start of each task", low=1e-12, high=1e3)
    momentum: float = option(0.9, "momentum of sgd", low=0, high=1)
    schedule: str = option(
        "constant", "learning rate within a task", choices=("constant", "linear", "cosine")
    )
    strength: float = option(
        30.0, "λ of EWC: how much old tasks count against the new one", low=0, high=1e12
    )
    decay: float = option(
        1.0, "factor on the memory at each new task; below 1 is online EWC", low=0, high=1
    )
    how: str = option("proximal", "how the pull is taken", choices=get_args(How))
    kind: str = option("exact", "which Fisher", choices=get_args(Kind))
    fisher_samples: int = option(10_000, "images the Fisher is taken over", low=1, high=MANY)
    floor: float = option(
        0.0, "fraction of each layer's mean Fisher added to all its entries", low=0, high=1e6
    )
    average: float = option(
        0.5, "fraction of each task, at its end, whose weights are averaged", low=0, high=1
    )
    segments: int = option(
        4, "parts of an epoch; a run can be stopped after each", low=1, high=10_000
    )

    def check(self) -> None:
        super().check()
        if self.data is not None and not Path(self.data).is_dir():
            raise RunError(f"--data must be a directory with IDX files, got {self.data}")
        weights = PIXELS * self.widest + (self.layers - 1) * self.widest**2
        if weights > MAX_WEIGHTS:
            raise RunError(
                f"a network of {self.layers} layers of {self.widest} units has {weights:.2g} "
                f"weights, more than {MAX_WEIGHTS:.0e}: choose a smaller --layers or --width"
            )

    @property
    def widest(self) -> int:
        """The largest width that any network may have."""
        return self.width

    def check_validation(self) -> None:
        """Refuse to go without the images that early stopping and search look at."""
        if self.validation_samples == 0:
            raise RunError(
                "dropout's early stopping and search need --validation-samples of at least 1, got 0"
            )

    def part_config(self, **changes: Any) -> dict[str, Any]:
        """The options of one learner: where its data comes from, and its recipe."""
        given = {one.name: getattr(self, one.name) for one in fields(self)} | changes
        names = {one.name for one in fields(Recipe)}
        source = ("data", "train_samples", "test_samples", "validation_samples", "square")
        return {
            **{name: given[name] for name in source},
            "recipe": {name: value for name, value in given.items() if name in names},
        }


def make_learner(config: dict[str, Any]) -> Learner:
    """The learner that `part_config` describes."""
    return Learner(make_tasks(config), Recipe(**config["recipe"]))


def make_tasks(config: dict[str, Any]) -> PermutedTasks:
    sizes = {name: config[name] for name in ("train_samples", "test_samples", "validation_samples")}
    data = _load(config["data"], tuple(sizes.items()))
    return PermutedTasks(data, config["recipe"]["seed"], config["square"])


@lru_cache(maxsize=1)
def _load(directory: str | None, sizes: tuple[tuple[str, Any], ...]) -> Data:
    """A worker runs many learners on the same data: read it once."""
    return load(directory, **dict(sizes))
