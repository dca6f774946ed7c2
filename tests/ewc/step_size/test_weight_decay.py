"""A decoupled weight decay counts as much as with the penalty in the loss."""

from collections.abc import Callable

import pytest
import torch
from support.held_regression import Problem, one_step
from support.rest_point import distances
from torch import nn
from torch.optim import AdamW, NAdam, Optimizer, RAdam

import ewc
from ewc.compiled_pull import SMALLEST


@pytest.mark.parametrize(("strength", "weight_decay"), [(0.7, 1e-2), (0.7, 1e-1), (10.0, 1e-1)])
def test_adamw_with_weight_decay_rests_at_the_minimum(strength: float, weight_decay: float) -> None:
    """Without noise the gradient of the whole vanishes there, and the decay with it."""
    problem = Problem(strength)
    optimizer = AdamW(problem.model.parameters(), lr=1e-2, weight_decay=weight_decay)
    assert max(distances(problem, optimizer, 1000)) < 0.005 * weight_decay


@pytest.mark.parametrize("make", [NAdam, RAdam])
def test_nadam_and_radam_with_decoupled_weight_decay_do_so_too(
    make: Callable[..., Optimizer],
) -> None:
    problem, options = Problem(), {"lr": 1e-2, "weight_decay": 0.1}
    optimizer = make(problem.model.parameters(), **options, decoupled_weight_decay=True)
    # The first steps go further for a while, and bursts of the weight that nothing holds.
    assert min(distances(problem, optimizer, 1500)) < 0.005 * 0.1


def test_adamw_decays_as_ever_where_nothing_pulls() -> None:
    """Precision zero, or no gradient in this step: not a bit is given back."""
    for pulled in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        memory = ewc.EWC(model, strength=1.0)
        memory.anchor(0.0)
        optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.3)
        if pulled:
            memory.attach(optimizer)
        for step in range(25):
            optimizer.zero_grad()
            model.weight.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        if pulled:
            weight = model.weight.detach().clone()
    torch.testing.assert_close(model.weight.detach(), weight, rtol=1e-6, atol=1e-7)


def test_adamw_follows_the_explicit_gradient_where_gradients_are_noisy() -> None:
    """With noise the decay counts, and by as much: the mean weights are the same."""
    means = {}
    for how in ("proximal", "gradient"):
        problem, noise = Problem(0.7), torch.Generator().manual_seed(0)
        optimizer = AdamW(problem.model.parameters(), lr=1e-2, weight_decay=0.1)
        problem.memory.attach(optimizer, how=how)
        minimum = problem.minimum()
        problem.set_weights(minimum[:4].unsqueeze(0), minimum[4:])
        total, steps = torch.zeros(5, dtype=torch.float64), 2000
        for step in range(steps):
            optimizer.zero_grad()
            problem.loss().backward()
            for p in problem.model.parameters():
                p.grad += 0.3 * torch.randn(p.shape, generator=noise, dtype=p.dtype)
            optimizer.step()
            total += problem.weights() if step >= steps // 4 else 0.0
        means[how] = total / (steps - steps // 4)
    torch.testing.assert_close(means["proximal"], means["gradient"], rtol=0, atol=3e-3)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_with_its_steps_on_a_device_is_pulled_the_same_way(
    weight_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    for on_cpu in (True, False):
        monkeypatch.setattr("ewc.step_size.step.on_cpu", lambda states, on_cpu=on_cpu: on_cpu)
        problem = Problem()
        optimizer = AdamW(problem.model.parameters(), lr=1e-2, weight_decay=weight_decay)
        problem.memory.attach(optimizer)
        for _ in range(30):
            one_step(problem, optimizer)
        weights.append(problem.weights())
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [AdamW, NAdam, RAdam])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_parameter_that_misses_a_step_changes_nothing_for_the_others(
    make: Callable[..., Optimizer], compiled: bool
) -> None:
    """From then on the parameters of a group have taken different numbers of steps."""
    options = {} if make is AdamW else {"decoupled_weight_decay": True}
    first = {
        misses: _first_of_two(make, misses, compiled=compiled, weight_decay=0.2, **options)
        for misses in (False, True)
    }
    torch.testing.assert_close(first[True], first[False], rtol=1e-9, atol=1e-9)


def _first_of_two(
    make: Callable[..., Optimizer], misses: bool, *, compiled: bool = False, **options: float
) -> torch.Tensor:
    """Train two parameters, the second of which may miss a step, and return the first."""
    random = torch.Generator().manual_seed(0)
    start = torch.randn(2, SMALLEST, generator=random, dtype=torch.float64)
    model = nn.ParameterList(nn.Parameter(row.clone()) for row in start)
    memory = ewc.EWC(model, strength=3.0)
    memory.anchor(1.0)
    with torch.no_grad():
        model[0].add_(1.0)
    optimizer = make(model.parameters(), lr=0.05, **options)
    memory.attach(optimizer, compiled=compiled)
    for step in range(40):
        model[0].grad = 1 + torch.randn(SMALLEST, generator=random, dtype=torch.float64)
        model[1].grad = None if misses and step == 3 else torch.ones_like(model[1])
        optimizer.step()
    return model[0].detach()


@pytest.mark.parametrize("make", [NAdam, RAdam])
@pytest.mark.parametrize("misses", [False, True])
def test_nadam_and_radam_with_their_steps_on_a_device_are_pulled_the_same_way(
    make: Callable[..., Optimizer], misses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"weight_decay": 0.2, "decoupled_weight_decay": True}
    expected = _first_of_two(make, misses, **options)
    for module in ("step", "adam"):
        monkeypatch.setattr(f"ewc.step_size.{module}.on_cpu", lambda states: False)
    torch.testing.assert_close(
        _first_of_two(make, misses, **options),
        expected,
        rtol=0,
        atol=5e-4,  # r in float32
    )
