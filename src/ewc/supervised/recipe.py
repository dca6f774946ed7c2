"""What one network is told: its method, its size and how it is trained."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from ewc.importance.likelihood import Kind
from ewc.step import How


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


class EarlyStopping:
    """The rule of the paper's appendix, for one task.

    Looks at the validation error over all tasks so far. Once it has been above its lowest value
    more than `PATIENCE` times in a row the task ends, and the weights go back to those of the
    lowest error.
    """

    PATIENCE = 5

    def __init__(self) -> None:
        self.lowest = math.inf
        self.increases = 0
        self.best: dict[str, torch.Tensor] = {}

    def observe(self, error: float, model: nn.Module) -> bool:
        """Take in an error; true when the task is to end."""
        if error <= self.lowest:
            self.lowest, self.increases = error, 0
            self.best = {name: w.detach().clone() for name, w in model.state_dict().items()}
        else:
            self.increases += 1
        return self.increases > self.PATIENCE

    def state_dict(self) -> dict[str, object]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)
