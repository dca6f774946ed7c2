"""The pull on an optimizer reaches the minimum of equation 3, and never blows up on the way."""

import copy
from collections.abc import Callable

import pytest
import torch
from support.held_regression import STRENGTH, Problem, one_step, train
from torch import Tensor, nn
from torch.optim import (
    LBFGS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    SparseAdam,
)

import ewc
from ewc.pull import _skipped

Make = Callable[[nn.Module], Optimizer]


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda m: SGD(m.parameters(), lr=0.3),
    "momentum": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.8),
    "dampening": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.8, dampening=0.5),
    "nesterov": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.8, nesterov=True),
    "fused sgd": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.8, fused=True),
    "tensor lr": lambda m: SGD(m.parameters(), lr=torch.tensor(0.3)),
    "groups": lambda m: SGD(
        [{"params": [m.bias], "lr": 0.5}, {"params": [m.weight], "momentum": 0.5}], lr=0.1
    ),
    "adam": lambda m: Adam(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9)),
    "amsgrad": lambda m: Adam(m.parameters(), lr=0.3, eps=0.1, betas=(0.8, 0.9), amsgrad=True),
    "fused adam": lambda m: Adam(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9), fused=True),
    "adamw": lambda m: AdamW(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9), weight_decay=0.0),
    "nadam": lambda m: NAdam(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9)),
    "radam": lambda m: RAdam(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9)),
    "rmsprop": lambda m: RMSprop(m.parameters(), lr=0.03, eps=0.1, alpha=0.9),
    "rmsprop momentum": lambda m: RMSprop(
        m.parameters(), lr=0.03, eps=0.1, alpha=0.9, momentum=0.5
    ),
    "rmsprop centered": lambda m: RMSprop(
        m.parameters(), lr=0.03, eps=0.1, alpha=0.9, centered=True
    ),
    "rmsprop centered momentum": lambda m: RMSprop(
        m.parameters(), lr=0.3, eps=1.0, alpha=0.9, centered=True, momentum=0.2
    ),
}


@pytest.mark.parametrize("how", ["loss term", "gradient", "proximal"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_every_pull_reaches_the_minimum_of_equation_3(make: Make, how: str) -> None:
    problem = Problem()
    minimum = problem.minimum()
    optimizer = make(problem.model)
    if how == "loss term":
        loss = problem.loss
        problem.loss = lambda: loss() + problem.memory.penalty()
    else:
        problem.memory.attach(optimizer, how=how)
    train(problem, optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


@pytest.mark.parametrize("how", ["gradient", "proximal"])
def test_weight_decay_stays_part_of_the_objective(how: str) -> None:
    for make in (
        lambda m: SGD(m.parameters(), lr=0.1, momentum=0.8, weight_decay=0.3),
        lambda m: Adam(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9), weight_decay=0.3),
        lambda m: NAdam(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9), weight_decay=0.3),
        lambda m: RAdam(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9), weight_decay=0.3),
        lambda m: RMSprop(m.parameters(), lr=0.03, eps=0.1, alpha=0.9, weight_decay=0.3),
    ):
        problem = Problem()
        minimum = problem.minimum(weight_decay=0.3)
        optimizer = make(problem.model)
        problem.memory.attach(optimizer, how=how)
        train(problem, optimizer)
        torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


@pytest.mark.parametrize("how", ["gradient", "proximal"])
def test_maximizing_the_negative_loss_is_pulled_the_same_way(how: str) -> None:
    problem = Problem()
    minimum = problem.minimum()
    optimizer = SGD(problem.model.parameters(), lr=0.1, momentum=0.8, maximize=True)
    problem.memory.attach(optimizer, how=how)
    train(problem, optimizer, sign=-1.0)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


def test_gradient_pull_works_for_optimizers_that_call_a_closure() -> None:
    problem = Problem()
    minimum = problem.minimum()
    optimizer = LBFGS(
        problem.model.parameters(),
        max_iter=300,
        tolerance_grad=1e-12,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    problem.memory.attach(optimizer, how="gradient")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = problem.loss()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


def test_each_step_is_the_equation_and_follows_the_learning_rate_and_the_strength() -> None:
    held, free = Problem(), Problem()
    optimizers = [SGD(p.model.parameters(), lr=0.2) for p in (held, free)]
    held.memory.attach(optimizers[0])
    precision = sum(p["weight"] for p, _ in held.wells)
    moment = sum(p["weight"] * a["weight"] for p, a in held.wells)
    for lr, strength in [(0.2, STRENGTH), (0.2, STRENGTH), (0.05, STRENGTH), (0.05, 9.0)]:
        free.model.load_state_dict(held.model.state_dict())
        held.memory.strength = strength
        for problem, optimizer in zip((held, free), optimizers, strict=True):
            optimizer.param_groups[0]["lr"] = lr
            one_step(problem, optimizer)
        expected = (free.model.weight + lr * strength * moment) / (1 + lr * strength * precision)
        torch.testing.assert_close(held.model.weight, expected, rtol=1e-13, atol=1e-13)


def test_adams_first_step_is_the_equation_with_the_bias_corrected_moment() -> None:
    held, free = Problem(), Problem()
    optimizers = [Adam(p.model.parameters(), lr=0.2, eps=0.1) for p in (held, free)]
    held.memory.attach(optimizers[0])
    for problem, optimizer in zip((held, free), optimizers, strict=True):
        one_step(problem, optimizer)
    precision = sum(p["weight"] for p, _ in held.wells)
    moment = sum(p["weight"] * a["weight"] for p, a in held.wells)
    eta = 0.2 / (free.model.weight.grad.abs() + 0.1)  # after one step v̂ is the squared gradient
    pull = eta * STRENGTH
    expected = (free.model.weight + pull * moment) / (1 + pull * precision)
    torch.testing.assert_close(held.model.weight, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("strength", [1e-6, 1e3, 1e12])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_proximal_pull_is_finite_for_any_strength(make: Make, strength: float) -> None:
    problem = Problem(strength, dtype=torch.float32)
    optimizer = make(problem.model)
    problem.memory.attach(optimizer)
    before = problem.weights()
    for _ in range(50):
        one_step(problem, optimizer)
    assert problem.weights().isfinite().all()
    assert not torch.equal(problem.weights(), before)
    if strength == 1e12:
        held = problem.wells[0][0]["weight"][0] > 0
        anchor = problem.memory._wells.active.anchor["weight"][0]
        torch.testing.assert_close(problem.model.weight[0, held], anchor[held])


@pytest.mark.parametrize("how", ["gradient", "proximal"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_strength_zero_changes_no_bit(make: Make, how: str) -> None:
    problems = [Problem(0.0), Problem(0.0)]
    for problem, attach in zip(problems, (True, False), strict=True):
        optimizer = make(problem.model)
        if attach:
            problem.memory.attach(optimizer, how=how)
        for _ in range(5):
            one_step(problem, optimizer)
    assert torch.equal(problems[0].weights(), problems[1].weights())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_weights_without_a_gradient_go_to_their_anchor(make: Make) -> None:
    problem = Problem(50.0)
    optimizer = make(problem.model)
    problem.memory.attach(optimizer)
    anchor = problem.memory._wells.active.anchor["bias"]
    for _ in range(500):
        optimizer.zero_grad()
        problem.loss().backward()
        problem.model.bias.grad = None
        optimizer.step()
    torch.testing.assert_close(problem.model.bias.detach(), anchor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [Adam, AdamW, NAdam, RAdam, RMSprop, Adagrad])
def test_unheld_weights_without_a_gradient_stay_with_eps_zero(
    make: Callable[..., Optimizer],
) -> None:
    model = nn.Linear(3, 2)
    memory = ewc.EWC(model, strength=1.0)
    memory.anchor(0.0)
    optimizer = make(model.parameters(), lr=0.1, eps=0.0)
    memory.attach(optimizer)
    before = model.bias.detach().clone()
    model.weight.sum().backward()
    optimizer.step()
    assert torch.equal(model.bias, before)


@pytest.mark.parametrize("make", [SGD, SparseAdam])
def test_the_gradient_pull_adds_to_sparse_gradients(make: Callable[..., Optimizer]) -> None:
    model = nn.Embedding(5, 2, sparse=True)
    memory = ewc.EWC(model, strength=2.0)
    memory.anchor(3.0)
    optimizer = make(model.parameters(), lr=0.1)
    memory.attach(optimizer, how="gradient")
    with torch.no_grad():
        model.weight[:3] += 1.0
    model(torch.tensor([2, 4])).sum().backward()
    optimizer.step()
    expected = torch.tensor([6.0, 6.0, 7.0, 0.0, 1.0]).unsqueeze(1).expand(5, 2)
    torch.testing.assert_close(model.weight.grad.to_dense(), expected)


def test_frozen_weights_are_not_moved() -> None:
    for how in ("gradient", "proximal"):
        problem = Problem()
        optimizer = SGD(problem.model.parameters(), lr=0.1)
        problem.memory.attach(optimizer, how=how)
        problem.model.bias.requires_grad_(False)
        before = problem.model.bias.clone()
        one_step(problem, optimizer)
        assert torch.equal(problem.model.bias, before)


def test_parameter_groups_added_later_are_pulled() -> None:
    problem = Problem(50.0)
    optimizer = SGD([problem.model.weight], lr=0.1)
    problem.memory.attach(optimizer)
    optimizer.add_param_group({"params": [problem.model.bias]})
    before = copy.deepcopy(problem)
    one_step(problem, optimizer)
    one_step(before, SGD(before.model.parameters(), lr=0.1))
    assert not torch.equal(problem.model.bias, before.model.bias)


@pytest.mark.parametrize("how", ["gradient", "proximal"])
def test_bfloat16_weights_are_pulled_towards_their_anchor(how: str) -> None:
    problem = Problem(20.0, dtype=torch.bfloat16)
    optimizer = SGD(problem.model.parameters(), lr=0.01)
    problem.memory.attach(optimizer, how=how)
    before = problem.memory.penalty().item()
    for _ in range(100):
        one_step(problem, optimizer)
    after = problem.memory.penalty().item()
    assert problem.model.weight.dtype == torch.bfloat16
    assert after < before / 2


@pytest.mark.parametrize("how", ["gradient", "proximal"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_scales_nothing_and_skips_the_pull_with_the_step(
    how: str, fused: bool
) -> None:
    scaled, plain = Problem(dtype=torch.float32), Problem(dtype=torch.float32)
    optimizers = [SGD(p.model.parameters(), lr=0.1, fused=fused) for p in (scaled, plain)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for problem, optimizer in zip((scaled, plain), optimizers, strict=True):
        problem.memory.attach(optimizer, how=how)
    scaler.scale(scaled.loss()).backward()
    scaler.step(optimizers[0])
    scaler.update()
    one_step(plain, optimizers[1])
    torch.testing.assert_close(scaled.weights(), plain.weights())

    before = scaled.weights()
    optimizers[0].zero_grad()
    scaler.scale(scaled.loss() * torch.inf).backward()
    scaler.step(optimizers[0])
    scaler.update()
    assert torch.equal(scaled.weights(), before)


def test_the_gradient_pull_comes_after_accumulation_and_clipping() -> None:
    problem = Problem()
    optimizer = SGD(problem.model.parameters(), lr=0.1)
    problem.memory.attach(optimizer, how="gradient")
    before = {name: p.detach().clone() for name, p in problem.model.named_parameters()}
    pull = torch.autograd.grad(problem.penalty(), problem.model.weight)[0]
    for _ in range(3):
        problem.loss().backward()
    nn.utils.clip_grad_norm_(problem.model.parameters(), 1e-3)
    expected = before["weight"] - 0.1 * (problem.model.weight.grad + pull)
    optimizer.step()
    torch.testing.assert_close(problem.model.weight.detach(), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_blocks_of_any_size_are_pulled_as_the_whole(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(20, 6), {}
    for size in (4, 1000):
        monkeypatch.setattr("ewc.blocks.block_size", lambda device, size=size: size)
        torch.manual_seed(1)
        model = nn.Linear(6, 5, dtype=torch.float64)
        memory = ewc.EWC(model, strength=3.0)
        memory.anchor({name: torch.rand_like(p) for name, p in model.named_parameters()})
        optimizer = make(model)
        memory.attach(optimizer)
        for _ in range(10):
            optimizer.zero_grad()
            (model(x.double()).square().mean() + model.weight.sum()).backward()
            optimizer.step()
        weights[size] = model.weight.detach()
    torch.testing.assert_close(weights[4], weights[1000], rtol=1e-13, atol=1e-14)


def test_a_skip_that_is_known_to_a_device_alone_is_not_read() -> None:
    """The meta device has no values: reading one would raise."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))])
    for value, skipped in ((0.0, False), (1.0, True)):
        optimizer.found_inf = torch.tensor(value)
        assert _skipped(optimizer) is skipped
    optimizer.found_inf = torch.ones((), device="meta")
    assert _skipped(optimizer).device.type == "meta"
