"""The options of permuted MNIST: its data, the network, how it is trained and what it remembers.

Each group of options is a dataclass, and an experiment inherits the groups that it uses.
`TasksConfig` and `TrainingConfig` are what one network is made from: its tasks, and its training.

The paper tells neither the batch size, λ and the strength of its L2 baseline, nor over how many
images its Fisher is taken; the defaults here and the presets of the experiments are our choice.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from ewc.fisher.likelihood import Kind
from ewc.memory import Curvature
from ewc.step_size import How
from ewc_paper.mnist.data import SIDE
from ewc_paper.options import option

OptimizerName = Literal["sgd", "adam"]
CenterChoice = Literal["auto", "each", "latest"]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Method:
    """What sets a method apart; the training loop is the same for all."""

    pull: Literal["none", "l2", "ewc"] = "none"
    dropout: bool = False  # with early stopping, as in the paper's appendix
    joint: bool = False  # trains on all tasks so far: the upper bound
    kronecker: bool = False  # EWC with two factors per layer, whatever the option says


METHODS = {
    "sgd": Method(),
    "l2": Method(pull="l2"),
    "ewc": Method(pull="ewc"),
    "kronecker": Method(pull="ewc", kronecker=True),
    "dropout": Method(dropout=True),
    "joint": Method(joint=True),
}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data."""

    data: str | None = option(
        None, "directory of an IDX data set of MNIST's shape; MNIST itself without"
    )
    train_samples: int | None = option(None, "train on only the first so many images", low=1)
    test_samples: int | None = option(None, "test on only the first so many images", low=1)


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """The data. Images for early stopping and search."""

    validation_samples: int = option(
        0, "training images held out for early stopping and search", low=0
    )


@dataclass(frozen=True, kw_only=True)
class PermutationConfig:
    """The data. What is permuted."""

    square: int = option(
        SIDE, "side of the centered square of pixels that is permuted", low=1, high=SIDE
    )


@dataclass(frozen=True, kw_only=True)
class TasksConfig(DataConfig, ValidationConfig, PermutationConfig):
    """The data and its permutations: the tasks of one network."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The network."""

    layers: int = option(2, "hidden layers", low=1, high=100, common=True)
    width: int = option(400, "units per hidden layer", low=1, high=100_000, common=True)


@dataclass(frozen=True, kw_only=True)
class OptimizationConfig:
    """The training."""

    tasks: int = option(
        3, "number of tasks, learned one after another", low=1, high=1000, common=True
    )
    epochs: int = option(5, "epochs per task", low=1, high=100_000, common=True)
    batch_size: int = option(64, "images per gradient step", low=1, high=60_000, common=True)
    optimizer: OptimizerName = option("sgd", "optimizer", choices=get_args(OptimizerName))
    lr: float = option(
        0.1, "learning rate at the start of each task", low=1e-12, high=1e3, common=True
    )
    momentum: float = option(0.9, "momentum of SGD", low=0, high=0.9999)  # 1 never forgets
    schedule: Schedule = option(
        "constant", "learning rate within a task", choices=get_args(Schedule)
    )
    measure_every: int = option(
        1, "tasks between two measurements; the last task is always measured", low=1
    )
    average: float = option(
        0.5, "fraction of each task, at its end, whose weights are averaged", low=0, high=1
    )
    segments: int = option(
        4, "segments per epoch; a run can be stopped after each", low=1, high=10_000
    )


@dataclass(frozen=True, kw_only=True)
class FisherConfig:
    """The Fisher and the memory of tasks."""

    kind: Kind = option("exact", "which Fisher protects a task", choices=get_args(Kind))
    fisher_samples: int = option(10_000, "images per Fisher", low=1, high=60_000, common=True)
    floor: float = option(
        0.0, "fraction of each layer's mean Fisher added to all its entries", low=0, high=1e6
    )
    curvature: Curvature = option(
        "diagonal",
        "what EWC remembers of a task: one number per weight, or two matrices per layer",
        choices=get_args(Curvature),
    )
    center: CenterChoice = option(
        "auto",
        "where tasks are remembered: around their own weights, or all around the last ones "
        "(auto: each with the diagonal, as in the paper; latest with kronecker)",
        choices=get_args(CenterChoice),
    )
    decay: float = option(
        1.0, "factor on the memory at each new task; below 1 is online EWC", low=0, high=1
    )


@dataclass(frozen=True, kw_only=True)
class PullConfig:
    """The pull on the weights."""

    strength: float = option(
        30.0, "λ of EWC: how much old tasks count against the new one", low=0, common=True
    )
    how: How = option("proximal", "how the pull is computed", choices=get_args(How))


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(NetworkConfig, OptimizationConfig, FisherConfig, PullConfig):
    """How one network learns its tasks, one after another: all groups, and what sets it apart."""

    method: str = "ewc"  # a key of METHODS
    seed: int = 0
    curves: bool = False  # measure after every segment, not only after every task
