"""RMSprop and Adagrad rest at the minimum of loss + penalty."""

from collections.abc import Callable

import pytest
import torch
from support.constant_gradient import step_sizes
from support.held_regression import Problem, one_step
from support.rest_point import distances
from torch import nn
from torch.optim import Adagrad, Optimizer, RMSprop

import ewc
from ewc.step_size.rmsprop import DEVIATION, adagrad_step_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("strength", "momentum"), [(10.0, 0.0), (0.7, 0.9), (1000.0, 0.9)])
def test_centered_rmsprop_without_noise_comes_within_a_few_steps_of_the_minimum(
    dtype: torch.dtype, strength: float, momentum: float
) -> None:
    problem = Problem(strength, dtype=dtype)
    optimizer = RMSprop(problem.model.parameters(), lr=1e-3, centered=True, momentum=momentum)
    assert max(distances(problem, optimizer, 1800)) < 5e-3


def test_centered_rmsprop_is_left_alone_where_gradients_are_noisy() -> None:
    torch.manual_seed(0)
    model = nn.Linear(50, 50)
    memory = ewc.EWC(model, strength=1.0)
    memory.anchor(1.0)
    optimizer = RMSprop(model.parameters(), lr=1e-3, centered=True, alpha=0.9)
    memory.attach(optimizer)
    squares = torch.zeros_like(model.weight)
    for _ in range(20):
        model.weight.grad = torch.randn_like(model.weight)
        squares = squares.mul(0.9).addcmul(model.weight.grad, model.weight.grad, value=1 - 0.9)
        optimizer.step()
    state = optimizer.state[model.weight]
    untouched = state["grad_avg"].square() * (1 + DEVIATION**2) < squares
    assert untouched.float().mean() > 0.99
    torch.testing.assert_close(state["square_avg"][untouched], squares[untouched])


@pytest.mark.parametrize(
    "make",
    [
        lambda p: RMSprop(p, lr=0.02, alpha=0.9),
        lambda p: Adagrad(p, lr=0.2),
        lambda p: Adagrad(p, lr=0.2, lr_decay=0.1, initial_accumulator_value=0.5, eps=0.3),
    ],
    ids=["rmsprop", "adagrad", "adagrad with everything"],
)
def test_each_step_is_as_large_as_the_rule_says(
    make: Callable[[list[nn.Parameter]], Optimizer],
) -> None:
    for known, moved in step_sizes(make, 20):
        torch.testing.assert_close(known, moved, rtol=1e-9, atol=0)


@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_adagrad_comes_to_rest_at_the_minimum(how: str) -> None:
    """Slowly: the gradient of the loss, which the pull balances, is summed at every step."""
    problem = Problem()
    optimizer = Adagrad(problem.model.parameters(), lr=1.0, lr_decay=1e-4)
    problem.memory.attach(optimizer, how=how)
    for _ in range(2500):
        one_step(problem, optimizer)
    torch.testing.assert_close(problem.weights(), problem.minimum(), rtol=0, atol=1e-8)


def test_parameters_of_adagrad_with_different_step_counts_have_their_own() -> None:
    group = {"lr": 0.1, "lr_decay": 0.5, "eps": 1e-3}
    states = [{"step": torch.tensor(t), "sum": torch.tensor([4.0])} for t in (1.0, 5.0)]
    step = adagrad_step_size(group, [torch.zeros(1)] * 2, states)
    rates = [step.rate / float(scale) for scale in step.scale]
    assert rates == pytest.approx([0.1 / 2.001, 0.1 / 3 / 2.001], rel=1e-6)
