"""The optimizer of a network and its learning rate over a task."""

import math
from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from ewc_paper.mnist.config import OptimizationConfig


def make_optimizer(config: OptimizationConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
    if config.optimizer == "adam":
        return Adam(parameters, lr=config.lr, fused=True)
    return SGD(parameters, lr=config.lr, momentum=config.momentum, fused=True)


def learning_rate(config: OptimizationConfig, trained: float) -> float:
    """The rate when the fraction `trained` of a task's epochs is over; every task starts anew."""
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * (1 - trained)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * trained)) / 2
