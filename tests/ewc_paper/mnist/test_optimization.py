"""The optimizer that the options ask for, and its rate over a task."""

from typing import Any

import pytest
from torch import nn
from torch.optim import SGD, Adam

from ewc_paper.mnist.config import OptimizationConfig
from ewc_paper.mnist.optimization import learning_rate, make_optimizer


def test_the_rate_falls_within_a_task() -> None:
    config = OptimizationConfig(lr=0.2, schedule="cosine")
    assert [learning_rate(config, t) for t in (0, 0.5, 1)] == pytest.approx([0.2, 0.1, 0.0])
    assert learning_rate(OptimizationConfig(lr=0.2, schedule="linear"), 0.25) == pytest.approx(0.15)
    assert learning_rate(OptimizationConfig(lr=0.2), 0.9) == 0.2


@pytest.mark.parametrize(
    ("name", "kind", "momentum"), [("sgd", SGD, {"momentum": 0.3}), ("adam", Adam, {})]
)
def test_the_optimizer_has_the_rate_and_the_momentum(
    name: Any, kind: type, momentum: dict[str, float]
) -> None:
    config = OptimizationConfig(optimizer=name, lr=0.2, momentum=0.3)
    optimizer = make_optimizer(config, nn.Linear(2, 2).parameters())
    assert type(optimizer) is kind
    assert optimizer.defaults.items() >= {"lr": 0.2, **momentum}.items()
