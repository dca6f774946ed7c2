"""What the pull knows of optimizers: their steps, and what they make of gradients without it."""

import math

import pytest
import torch
from support.held_regression import Problem, one_step, train
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

import ewc
from ewc.step_size import DEVIATION, StepSize, bias_corrections, stability_limit


def distances(problem: Problem, optimizer: Optimizer, steps: int) -> list[float]:
    """How far the weights, at the minimum of loss + penalty first, are from it after half of it."""
    minimum = Problem(problem.memory.strength).minimum()
    problem.set_weights(minimum[:4].unsqueeze(0), minimum[4:])
    problem.memory.attach(optimizer)
    found = []
    for _ in range(steps):
        one_step(problem, optimizer)
        found.append(float((problem.weights().double() - minimum).abs().max()))
    return found[steps // 2 :]


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


@pytest.mark.parametrize(("strength", "weight_decay"), [(0.7, 1e-2), (0.7, 1e-1), (10.0, 1e-1)])
def test_adamw_with_weight_decay_rests_at_the_minimum(strength: float, weight_decay: float) -> None:
    """Without noise the gradient of the whole vanishes there, and the decay with it."""
    problem = Problem(strength)
    optimizer = AdamW(problem.model.parameters(), lr=1e-2, weight_decay=weight_decay)
    assert max(distances(problem, optimizer, 1000)) < 0.005 * weight_decay


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


def test_bfloat16_weights_under_adamw_are_pulled() -> None:
    problem = Problem(20.0, dtype=torch.bfloat16)
    optimizer = AdamW(problem.model.parameters(), lr=0.01)
    problem.memory.attach(optimizer)
    before = problem.memory.penalty().item()
    for _ in range(100):
        one_step(problem, optimizer)
    assert problem.model.weight.dtype == torch.bfloat16
    assert problem.memory.penalty().item() < before / 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.5, "dampening": 0.3},
        {"momentum": 0.9, "nesterov": True},
    ],
)
def test_the_explicit_pull_of_sgd_diverges_beyond_the_limit_and_not_below(options) -> None:
    """One weight at 1, held at 0 with precision 1, and no loss at all."""
    for factor, diverges in ((0.97, False), (1.03, True)):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = SGD([weight], lr=1.0, **options)
        optimizer.param_groups[0]["lr"] = factor * stability_limit(
            optimizer, optimizer.param_groups[0]
        )
        weight.data.fill_(1.0)
        for _ in range(2000):
            weight.grad = weight.detach().clone()
            optimizer.step()
        assert (not abs(weight.item()) < 1) == diverges


def test_no_limit_is_known_for_optimizers_that_divide_by_the_gradient() -> None:
    optimizer = Adam([nn.Parameter(torch.zeros(1))])
    assert stability_limit(optimizer, optimizer.param_groups[0]) == math.inf


def test_unknown_steps_are_refused_and_the_gradient_pull_is_named() -> None:
    class OwnStep(SGD):
        def step(self, closure=None):
            return super().step(closure)

    problem = Problem()
    for optimizer in (Adagrad(problem.model.parameters()), OwnStep(problem.model.parameters())):
        with pytest.raises(ValueError, match=r"not those of \w+; use .*how='gradient'"):
            problem.memory.attach(optimizer)
        problem.memory.attach(optimizer, how="gradient")


class SameStep(SGD):
    pass


class Halved(SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=group["lr"] / 2)

    def step_size(self, group, parameters, states):
        return StepSize(group["lr"] / 2)


@pytest.mark.parametrize("kind", [SameStep, Halved])
def test_a_subclass_that_keeps_the_step_or_says_its_own_is_known(kind: type[SGD]) -> None:
    problem = Problem()
    optimizer = kind(problem.model.parameters(), lr=0.3)
    problem.memory.attach(optimizer)
    minimum = problem.minimum()
    train(problem, optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


def test_step_counts_on_a_device_are_not_read() -> None:
    """The meta device has no values: reading one would raise."""
    states = [{"step": torch.ones((), device="meta")}, {}]
    corrections = bias_corrections(0.999, states)
    assert [one.device.type for one in corrections] == ["meta", "meta"]


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999])
def test_bias_corrections_on_a_device_are_those_of_the_cpu(
    beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [{"step": torch.tensor(float(step))} for step in (1, 2, 1000)] + [{}]
    expected = bias_corrections(beta, states)
    monkeypatch.setattr("ewc.step_size.on_cpu", lambda steps: False)
    found = [float(one) for one in bias_corrections(beta, states)]
    assert found[:3] == pytest.approx(expected[:3], rel=1e-5)
    assert float(bias_corrections(beta, [{"step": torch.tensor(0.0)}])[0]) > 0  # skipped so far


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_with_its_steps_on_a_device_is_pulled_the_same_way(
    weight_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    for on_cpu in (True, False):
        monkeypatch.setattr("ewc.step_size.on_cpu", lambda steps, on_cpu=on_cpu: on_cpu)
        problem = Problem()
        optimizer = AdamW(problem.model.parameters(), lr=1e-2, weight_decay=weight_decay)
        problem.memory.attach(optimizer)
        for _ in range(30):
            one_step(problem, optimizer)
        weights.append(problem.weights())
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)
