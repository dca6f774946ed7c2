"""What one network is told: its method, its size and how it is trained."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from ewc.fisher.likelihood import Kind
from ewc.step_size import How


@dataclass(frozen=True)
class Method:
    """What sets a method apart; the training loop is the same for all."""

    pull: Literal["none", "l2", "ewc"] = "none"
    dropout: bool = False  # with early stopping, as in the paper's appendix
    joint: bool = False  # trains on all tasks so far: the ceiling


METHODS = {
    "sgd": Method(),
    "l2": Method(pull="l2"),
    "ewc": Method(pull="ewc"),
    "dropout": Method(dropout=True),
    "joint": Method(joint=True),
}


@dataclass(frozen=True)
class Recipe:
    """How one network learns its tasks, one after another."""

    method: str = "ewc"
    tasks: int = 3
    layers: int = 2
    width: int = 400
    epochs: int = 5
    batch_size: int = 128
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    strength: float = 100.0
    decay: float = 1.0
    how: How = "proximal"
    kind: Kind = "exact"
    fisher_samples: int = 10_000
    floor: float = 0.0
    average: float = 0.0
    segments: int = 1
    curves: bool = False
    seed: int = 0


def make_optimizer(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> Optimizer:
    if recipe.optimizer == "adam":
        return Adam(parameters, lr=recipe.lr, fused=True)
    return SGD(parameters, lr=recipe.lr, momentum=recipe.momentum, fused=True)


def learning_rate(recipe: Recipe, trained: float) -> float:
    """The rate once the fraction `trained` of a task's epochs is over; every task starts anew."""
    match recipe.schedule:
        case "constant":
            return recipe.lr
        case "linear":
            return recipe.lr * (1 - trained)
        case "cosine":
            return recipe.lr * (1 + math.cos(math.pi * trained)) / 2
