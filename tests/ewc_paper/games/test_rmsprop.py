"""The paper's RMSProp against its equations, weight by weight."""

import math

import pytest
import torch
from support.held_regression import Problem, train
from torch import nn

from ewc_paper.games.rmsprop import CappedRMSProp


def test_each_step_is_the_equation() -> None:
    lr, max_lr, alpha = 0.02, 0.1, 0.9
    weights = nn.Parameter(torch.tensor([0.5, -1.0, 0.0], dtype=torch.float64))
    optimizer = CappedRMSProp([weights], lr=lr, max_lr=max_lr, alpha=alpha)
    expected = weights.tolist()
    squares, means = [0.0] * 3, [0.0] * 3
    for gradients in ([1.0, -0.2, 0.0], [0.5, 0.3, 0.0], [-2.0, 0.1, 1e-9]):
        weights.grad = torch.tensor(gradients, dtype=torch.float64)
        optimizer.step()
        for i, gradient in enumerate(gradients):
            squares[i] = alpha * squares[i] + (1 - alpha) * gradient**2
            means[i] = alpha * means[i] + (1 - alpha) * gradient
            root = math.sqrt(squares[i] - means[i] ** 2 + (lr / max_lr) ** 2)
            expected[i] -= lr * gradient / root
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_small_gradient_moves_a_weight_at_the_maximum_rate_and_none_faster() -> None:
    weights = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = CappedRMSProp([weights], lr=2.5e-4, max_lr=2.5e-3)
    weights.grad = torch.tensor([1e-6, 3.0], dtype=torch.float64)
    optimizer.step()
    rates = -weights.detach() / weights.grad
    assert float(rates[0]) == pytest.approx(2.5e-3, rel=1e-6)
    assert float(rates[1]) < 2.5e-3 / 5


def test_weights_without_a_gradient_stay() -> None:
    weights, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = CappedRMSProp([weights, idle], lr=0.1, max_lr=1.0)
    optimizer.step()
    weights.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(idle.detach(), torch.ones(2))
    assert (weights < 1).all()


def test_the_proximal_pull_reaches_the_minimum() -> None:
    problem = Problem()
    minimum = problem.minimum()
    optimizer = CappedRMSProp(list(problem.model.parameters()), lr=0.03, max_lr=0.3, alpha=0.9)
    problem.memory.attach(optimizer)
    train(problem, optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)
