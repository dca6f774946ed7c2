"""The steps of Adam and its kin."""

from collections.abc import Callable

import pytest
import torch
from support.constant_gradient import step_sizes
from support.held_regression import Problem, one_step
from torch import nn
from torch.optim import Adam, AdamW, NAdam, Optimizer, RAdam

from ewc.step_size.adam import adam_step_size, nadam_step_size, radam_step_size

Make = Callable[[list[nn.Parameter]], Optimizer]


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
    "make",
    [
        lambda p: Adam(p, lr=0.02, betas=(0.8, 0.9)),
        lambda p: Adam(p, lr=0.02, betas=(0.8, 0.9), amsgrad=True),
        lambda p: NAdam(p, lr=0.02),
        lambda p: NAdam(p, lr=0.02, betas=(0.8, 0.9), momentum_decay=0.5),
        lambda p: RAdam(p, lr=0.02, betas=(0.8, 0.9)),
        lambda p: RAdam(p, lr=0.02, betas=(0.8, 0.999), eps=0.1),
    ],
    ids=[
        "adam",
        "amsgrad",
        "nadam",
        "nadam with a fast schedule",
        "radam",
        "radam with a long average",
    ],
)
def test_each_step_is_as_large_as_the_rule_says(make: Make) -> None:
    """Also the first ones of RAdam, which it does not divide."""
    for known, moved in step_sizes(make, 20):
        torch.testing.assert_close(known, moved, rtol=1e-9, atol=0)


@pytest.mark.parametrize("on_device", [False, True])
def test_parameters_of_radam_with_different_step_counts_have_their_own(
    on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has taken 40 steps, the second 2, the third none: these two are not divided."""
    monkeypatch.setattr("ewc.step_size.adam.on_cpu", lambda states: not on_device)
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-3}
    square = torch.tensor([4.0])
    states = [{"step": torch.tensor(float(t)), "exp_avg_sq": square} for t in (40, 2)] + [{}]
    step = radam_step_size(group, [torch.zeros(1)] * 3, states)
    correction, longest = 1 - 0.99**40, 2 / (1 - 0.99) - 1
    length = longest - 2 * 40 * 0.99**40 / correction
    ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    rates = [step.rate / float(scale) for scale in step.scale]
    expected = 0.1 * ratio**0.5 * correction**0.5 / (2 + 1e-3)
    assert rates == pytest.approx([expected, 0.1, 0.1], rel=1e-5)


@pytest.mark.parametrize("on_device", [False, True])
def test_parameters_of_nadam_with_different_step_counts_have_their_own(
    on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each were alone in its group."""
    monkeypatch.setattr("ewc.step_size.adam.on_cpu", lambda states: not on_device)
    optimizer = NAdam([nn.Parameter(torch.ones(1)) for _ in range(2)], lr=0.1)
    first, second = optimizer.param_groups[0]["params"]
    for step in range(5):
        first.grad, second.grad = torch.ones(1), torch.full((1,), 3.0) if step > 2 else None
        optimizer.step()
    states = [optimizer.state[p] for p in (first, second)]

    def sizes(parameters: list[nn.Parameter], states: list) -> list[float]:
        step = nadam_step_size(optimizer.param_groups[0], parameters, states).rooted()
        return [step.rate / float(one) for one in step.scale]

    alone = sizes([first], states[:1]) + sizes([second], states[1:])
    assert sizes([first, second], states) == pytest.approx(alone, rel=1e-5)
    assert sizes([first, nn.Parameter(torch.ones(1))], [states[0], {}])[0] == pytest.approx(
        alone[0], rel=1e-5
    )


def test_parameters_of_adam_with_different_step_counts_have_their_own() -> None:
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-3}
    states = [{"step": torch.tensor(t), "exp_avg_sq": torch.tensor([4.0])} for t in (1.0, 5.0)]
    step = adam_step_size(group, [torch.zeros(1)] * 2, states).rooted()
    rates = [step.rate / float(scale) for scale in step.scale]
    expected = [0.1 / ((4 / (1 - 0.99**t)) ** 0.5 + 1e-3) for t in (1, 5)]
    assert rates == pytest.approx(expected, rel=1e-5)
