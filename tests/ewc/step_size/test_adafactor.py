"""Adafactor: its steps are those of the rule, and with the pull it rests at the minimum."""

from typing import Any

import pytest
import torch
from support.constant_gradient import step_sizes
from support.held_regression import Problem, one_step
from support.rest_point import distances
from torch import nn
from torch.optim import Adafactor

import ewc

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "small steps": {"lr": 1e-3},
    "large eps": {"lr": 0.1, "eps": (0.3, 2.0)},
    "hardly clipped": {"lr": 0.05, "d": 20.0, "beta2_decay": -0.3},
    "foreach": {"lr": 0.05, "foreach": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_each_step_is_as_large_as_the_rule_says(options: dict[str, Any]) -> None:
    for known, moved in step_sizes(lambda p: Adafactor(p, **options), 20):
        torch.testing.assert_close(known, moved, rtol=1e-9, atol=0)


def test_maximizing_has_the_same_steps() -> None:
    for known, moved in step_sizes(lambda p: Adafactor(p, lr=0.1, maximize=True), 5, sign=-1.0):
        torch.testing.assert_close(known, moved, rtol=1e-9, atol=0)


@pytest.mark.parametrize("strength", [0.1, 0.7, 10.0])
def test_it_rests_at_the_minimum(strength: float) -> None:
    problem = Problem(strength)
    optimizer = Adafactor(problem.model.parameters(), lr=1e-2, eps=(0.1, 1e-3))
    assert max(distances(problem, optimizer, 200)) < 1e-9


def test_with_a_small_eps_it_stays_within_a_few_steps_of_the_minimum() -> None:
    """As without a pull: a gradient that vanishes is divided by its own size."""
    for rate in (1e-2, 1e-3):
        optimizer = Adafactor((problem := Problem()).model.parameters(), lr=rate)
        assert max(distances(problem, optimizer, 200)) < 3 * rate


def test_it_comes_to_rest_at_the_minimum() -> None:
    problem = Problem()
    minimum = problem.minimum()
    optimizer = Adafactor(problem.model.parameters(), lr=0.03, eps=(0.1, 1e-3))
    problem.memory.attach(optimizer)
    for _ in range(1000):
        one_step(problem, optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


def test_weights_without_a_gradient_go_to_their_anchor() -> None:
    problem = Problem(50.0)
    optimizer = Adafactor(problem.model.parameters(), lr=0.1)
    problem.memory.attach(optimizer)
    anchor = problem.memory._wells.active.anchor["bias"]
    for _ in range(20):
        optimizer.zero_grad()
        problem.loss().backward()
        problem.model.bias.grad = None
        optimizer.step()
    torch.testing.assert_close(problem.model.bias.detach(), anchor, rtol=0, atol=1e-6)


def test_its_weight_decay_is_refused_before_anything_is_attached() -> None:
    model = nn.Linear(3, 2)
    memory = ewc.EWC(model, strength=1.0)
    optimizer = Adafactor(model.parameters(), weight_decay=0.1)
    with pytest.raises(ValueError, match=r"weight decay of Adafactor.*how='gradient'"):
        memory.attach(optimizer)
    memory.attach(optimizer, how="gradient")
