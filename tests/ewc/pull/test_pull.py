"""The pull on an optimizer reaches the minimum of equation 3, and never blows up on the way."""

import copy
import gc
import math
import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.memory import SAM, STRENGTH, Problem, make_model, move
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
from torch.optim.lr_scheduler import OneCycleLR

import ewc
from ewc.memory import EWC
from ewc.pull.hooks import _skipped
from ewc.step_size import StepSize

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


COMPLEX: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: Adam(p, lr=0.1),
    "amsgrad": lambda p: Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: AdamW(p, lr=0.1, weight_decay=0.1),
    "nadam": lambda p: NAdam(p, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda p: RAdam(p, lr=0.1),
    "rmsprop": lambda p: RMSprop(p, lr=0.1, centered=True, momentum=0.5),
    "adagrad": lambda p: Adagrad(p, lr=0.1),
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
    problem.train(optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


BETAS = {"lr": 0.03, "eps": 0.1, "betas": (0.8, 0.9)}
OF_THE_OBJECTIVE: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, {"lr": 0.1, "momentum": 0.8, "maximize": True}),
    (SGD, {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.3}),
    *((kind, {**BETAS, "weight_decay": 0.3}) for kind in (Adam, NAdam, RAdam)),
    (RMSprop, {"lr": 0.03, "eps": 0.1, "alpha": 0.9, "weight_decay": 0.3}),
]


@pytest.mark.parametrize("how", ["gradient", "proximal"])
@pytest.mark.parametrize(("kind", "options"), OF_THE_OBJECTIVE)
def test_weight_decay_and_maximizing_are_part_of_the_objective(kind, options, how) -> None:
    problem = Problem()
    minimum = problem.minimum(options.get("weight_decay", 0.0))
    optimizer = kind(problem.model.parameters(), **options)
    problem.memory.attach(optimizer, how=how)
    problem.train(optimizer, sign=-1.0 if options.get("maximize") else 1.0)
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
            problem.step(optimizer)
        expected = (free.model.weight + lr * strength * moment) / (1 + lr * strength * precision)
        torch.testing.assert_close(held.model.weight, expected, rtol=1e-13, atol=1e-13)


def test_a_task_that_is_added_or_left_out_pulls_from_the_next_step_on() -> None:
    """Nothing of the last pull is used again where it no longer holds."""
    held, free = Problem(), Problem()
    held.memory = ewc.EWC(held.model, strength=STRENGTH, keep_tasks=True)
    optimizers = [SGD(p.model.parameters(), lr=0.2) for p in (held, free)]
    held.memory.attach(optimizers[0])
    one = {name: torch.full_like(p, 2.0) for name, p in held.model.named_parameters()}

    def check() -> None:
        free.model.load_state_dict(held.model.state_dict())
        for problem, optimizer in zip((held, free), optimizers, strict=True):
            problem.step(optimizer)
        well = held.memory._wells.active
        precision, anchor = well.precision["weight"], well.anchor["weight"]
        moved = free.model.weight + 0.2 * STRENGTH * precision * anchor
        expected = moved / (1 + 0.2 * STRENGTH * precision)
        torch.testing.assert_close(held.model.weight, expected, rtol=1e-13, atol=1e-13)

    for task in "AB":
        held.memory.anchor(one, task=task)
        check()
        check()
    with held.memory.without("A"):
        check()
    check()
    held.memory.forget("A")
    check()


def test_adams_first_step_is_the_equation_with_the_bias_corrected_moment() -> None:
    held, free = Problem(), Problem()
    optimizers = [Adam(p.model.parameters(), lr=0.2, eps=0.1) for p in (held, free)]
    held.memory.attach(optimizers[0])
    for problem, optimizer in zip((held, free), optimizers, strict=True):
        problem.step(optimizer)
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
        problem.step(optimizer)
    assert problem.weights().isfinite().all()
    assert not torch.equal(problem.weights(), before)
    if strength == 1e12:
        held = problem.wells[0][0]["weight"][0] > 0
        anchor = problem.memory._wells.active.anchor["weight"][0]
        torch.testing.assert_close(problem.model.weight[0, held], anchor[held])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_tiny_precisions_with_a_huge_strength_pull_as_usual_ones(
    make: Make, dtype: torch.dtype
) -> None:
    """Only λP counts; one of the weights is not held, with P = 0."""
    weights = []
    for factor in (1.0, 2.0**-90):
        problem = Problem(STRENGTH / factor, dtype=dtype)
        wells = problem.memory._wells
        scaled = replace(
            wells.active, precision={n: factor * p for n, p in wells.active.precision.items()}
        )
        problem.memory._wells = replace(wells, active=scaled, total=scaled)
        optimizer = make(problem.model)
        problem.memory.attach(optimizer)
        for _ in range(20):
            problem.step(optimizer)
        weights.append(problem.weights())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["gradient", "proximal"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_strength_zero_changes_no_bit(make: Make, how: str) -> None:
    problems = [Problem(0.0), Problem(0.0)]
    for problem, attach in zip(problems, (True, False), strict=True):
        optimizer = make(problem.model)
        if attach:
            problem.memory.attach(optimizer, how=how)
        for _ in range(5):
            problem.step(optimizer)
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
        problem.step(optimizer)
        assert torch.equal(problem.model.bias, before)


def test_parameter_groups_added_later_are_pulled() -> None:
    problem = Problem(50.0)
    optimizer = SGD([problem.model.weight], lr=0.1)
    problem.memory.attach(optimizer)
    optimizer.add_param_group({"params": [problem.model.bias]})
    before = copy.deepcopy(problem)
    problem.step(optimizer)
    before.step(SGD(before.model.parameters(), lr=0.1))
    assert not torch.equal(problem.model.bias, before.model.bias)


@pytest.mark.parametrize(
    ("make", "how"), [(SGD, "gradient"), (SGD, "proximal"), (AdamW, "proximal")]
)
def test_bfloat16_weights_are_pulled_towards_their_anchor(make: Any, how: str) -> None:
    problem = Problem(20.0, dtype=torch.bfloat16)
    optimizer = make(problem.model.parameters(), lr=0.01)
    problem.memory.attach(optimizer, how=how)
    before = problem.memory.penalty().item()
    for _ in range(100):
        problem.step(optimizer)
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
    plain.step(optimizers[1])
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
        monkeypatch.setattr("ewc.step_size.block_size", lambda device, size=size: size)
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


@pytest.mark.parametrize("how", ["gradient", "proximal"])
@pytest.mark.parametrize("in_two_steps", [True, False])
def test_sam_is_pulled_with_the_optimizer_inside_of_it(how: str, in_two_steps: bool) -> None:
    """The same gradients without SAM, taken where it takes them, are the reference."""
    problem, reference = Problem(), Problem()
    optimizer = SAM(problem.model.parameters(), SGD, rho=0.05, lr=0.1, momentum=0.5)
    inside = SGD(reference.model.parameters(), lr=0.1, momentum=0.5)
    problem.memory.attach(optimizer, how=how)
    reference.memory.attach(inside, how=how)
    for _ in range(20):
        for one in (problem, reference):
            one.model.zero_grad()
            one.loss().backward()
        here = copy.deepcopy(reference.model.state_dict())
        norm = nn.utils.get_total_norm([p.grad for p in reference.model.parameters()])
        with torch.no_grad():
            for p in reference.model.parameters():
                p.add_(p.grad * (0.05 / (norm + 1e-12)))
        inside.zero_grad()
        reference.loss().backward()
        reference.model.load_state_dict(here)
        inside.step()
        if in_two_steps:
            optimizer.first_step()
            optimizer.zero_grad()
            problem.loss().backward()
            optimizer.second_step()
        else:
            optimizer.step(lambda: problem.loss().backward())
        torch.testing.assert_close(problem.weights(), reference.weights(), rtol=0, atol=1e-12)
    assert not torch.equal(problem.weights(), Problem().weights())


class WithPhases(nn.Module):
    """A layer of complex weights between two real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.phases = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.to(torch.float64)
        self.phases = nn.Parameter(self.phases.to(torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.body(x) * self.phases).real)


@pytest.mark.parametrize("make", COMPLEX.values(), ids=COMPLEX.keys())
def test_complex_weights_that_are_left_out_are_stepped_as_without_a_memory(
    make: Callable[..., Optimizer],
) -> None:
    """And the real weights beside them are pulled."""
    phases, weights = [], []
    for strength in (0.0, 1e5):
        torch.manual_seed(0)
        model = WithPhases()
        memory = ewc.EWC(model, strength=strength, parameters="!phases")
        memory.consolidate([torch.randn(8, 3, dtype=torch.float64)])
        anchor = model.body.weight.detach().clone()
        optimizer = make(model.parameters())
        memory.attach(optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            (model.body.weight.sum() + model.phases.abs().square().sum()).backward()
            optimizer.step()
        phases.append(model.phases.detach())
        weights.append(float((model.body.weight.detach() - anchor).abs().sum()))
    assert torch.equal(phases[0], phases[1])
    assert 0 < weights[1] < 0.2 * weights[0]


def cycled(step: int) -> float:
    """A momentum between 0.95 and 0.65, up and down in 60 steps, as CyclicLR would have it."""
    return 0.8 + 0.15 * math.cos(2 * math.pi * step / 60)


CYCLED: dict[str, Make] = {
    "sgd": lambda m: SGD(m.parameters(), lr=0.03, momentum=cycled(0)),
    "dampening": lambda m: SGD(m.parameters(), lr=0.05, momentum=cycled(0), dampening=0.4),
    "nesterov": lambda m: SGD(m.parameters(), lr=0.03, momentum=cycled(0), nesterov=True),
    "groups": lambda m: SGD(
        [{"params": [m.bias], "lr": 0.05}, {"params": [m.weight], "nesterov": True}],
        lr=0.03,
        momentum=cycled(0),
    ),
    "rmsprop": lambda m: RMSprop(m.parameters(), lr=0.01, eps=0.5, alpha=0.9, momentum=cycled(0)),
    "adam": lambda m: Adam(m.parameters(), lr=0.03, eps=0.1, betas=(cycled(0), 0.9)),
    "adamw": lambda m: AdamW(
        m.parameters(), lr=0.03, eps=0.1, betas=(cycled(0), 0.9), weight_decay=0.0
    ),
    "nadam": lambda m: NAdam(m.parameters(), lr=0.03, eps=0.1, betas=(cycled(0), 0.9)),
    "radam": lambda m: RAdam(m.parameters(), lr=0.03, eps=0.1, betas=(cycled(0), 0.9)),
}


def set_momentum(optimizer: Optimizer, step: int) -> None:
    for group in optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (cycled(step), group["betas"][1])
        else:
            group["momentum"] = cycled(step)


def train_cycled(problem: Problem, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        set_momentum(optimizer, step)
        problem.step(optimizer)


@pytest.mark.parametrize("make", CYCLED.values(), ids=CYCLED.keys())
def test_a_cycled_momentum_comes_to_rest_at_the_minimum_of_equation_3(make: Make) -> None:
    problem = Problem()
    minimum = problem.minimum()
    optimizer = make(problem.model)
    problem.memory.attach(optimizer)
    train_cycled(problem, optimizer, range(900))
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


def at_rest(problem: Problem, optimizer: SGD) -> Tensor:
    """Put the weights at the minimum, and into the buffers what a constant momentum has there."""
    minimum = problem.minimum()
    problem.set_weights(minimum[:4].unsqueeze(0), minimum[4:])
    problem.model.zero_grad()
    problem.loss().backward()
    momentum = optimizer.param_groups[0]["momentum"]
    for parameter in problem.model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = parameter.grad / (1 - momentum)
    return minimum


@pytest.mark.parametrize("strength", [0.1, 0.7, 10.0])
def test_one_cycle_keeps_weights_at_the_minimum_where_they_begin(strength: float) -> None:
    """`OneCycleLR` by default cycles the momentum too; no step of it may lead away."""
    problem = Problem(strength)
    optimizer = SGD(problem.model.parameters(), lr=0.1, momentum=0.95)
    schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=200)
    minimum = at_rest(problem, optimizer)
    problem.memory.attach(optimizer)
    for _ in range(199):
        problem.step(optimizer)
        schedule.step()
        assert float((problem.weights() - minimum).abs().max()) < 1e-9


def test_a_momentum_that_was_off_for_a_while_goes_on_with_its_old_buffer() -> None:
    problem = Problem()
    optimizer = SGD(problem.model.parameters(), lr=0.1, momentum=0.9)
    minimum = at_rest(problem, optimizer)
    problem.memory.attach(optimizer)
    for momentum in (0.9, 0.0, 0.0, 0.5, 0.5, 0.0, 0.9, 0.9):
        optimizer.param_groups[0]["momentum"] = momentum
        problem.step(optimizer)
        torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-9)


def test_a_constant_momentum_has_the_same_steps_as_if_it_were_never_followed() -> None:
    problems = Problem(), Problem()
    optimizers = [SGD(p.model.parameters(), lr=0.1, momentum=0.8) for p in problems]
    problems[0].memory.attach(optimizers[0])
    well, eta = problems[1].memory._wells.active, 0.1 * (1 - 0) / (1 - 0.8)
    for _ in range(30):
        for problem, optimizer in zip(problems, optimizers, strict=True):
            problem.step(optimizer)
        with torch.no_grad():
            for name, p in problems[1].model.named_parameters():
                precision = well.precision[name]
                p.lerp_(well.anchor[name], precision / (precision + 1 / (eta * STRENGTH)))
        assert torch.equal(problems[0].weights(), problems[1].weights())


@pytest.mark.parametrize("pickled", [False, True])
def test_a_copy_goes_on_with_the_same_buffers(pickled: bool) -> None:
    problem = Problem()
    optimizer = CYCLED["sgd"](problem.model)
    problem.memory.attach(optimizer)
    train_cycled(problem, optimizer, range(25))
    both = (problem, optimizer)
    copied = pickle.loads(pickle.dumps(both)) if pickled else copy.deepcopy(both)
    for one in (both, copied):
        train_cycled(*one, range(25, 30))
    assert torch.equal(problem.weights(), copied[0].weights())


def test_loaded_buffers_count_as_those_of_a_constant_momentum() -> None:
    """Nobody knows with which momentum they were summed."""
    problem = Problem()
    optimizer = SGD(problem.model.parameters(), lr=0.1, momentum=0.9)
    minimum = at_rest(problem, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    problem.memory.attach(optimizer)
    for momentum in (0.9, 0.5, 0.5):
        optimizer.param_groups[0]["momentum"] = momentum
        problem.step(optimizer)
    optimizer.load_state_dict(saved)
    problem.step(optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-9)


def test_two_memories_follow_a_cycled_momentum_together() -> None:
    problem = Problem()
    second = ewc.EWC(problem.model, strength=STRENGTH)
    second.load_state_dict(problem.memory.state_dict())
    problem.memory.strength, second.strength = 0.3 * STRENGTH, 0.7 * STRENGTH
    optimizer = CYCLED["sgd"](problem.model)
    problem.memory.attach(optimizer)
    train_cycled(problem, optimizer, range(20))
    second.attach(optimizer)
    train_cycled(problem, optimizer, range(20, 900))
    problem.memory.strength = STRENGTH
    torch.testing.assert_close(problem.weights(), problem.minimum(), rtol=0, atol=1e-8)


class OwnSteps(SGD):
    """An optimizer that says itself how large its steps are."""

    def step_size(self, group, parameters, states):
        return StepSize(group["lr"])


MAKES = {
    "sgd": lambda m: SGD(m.parameters(), lr=0.3),
    "momentum": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.8),
    "adam": lambda m: Adam(m.parameters(), lr=0.03, eps=0.1, betas=(0.8, 0.9)),
    "rmsprop": lambda m: RMSprop(m.parameters(), lr=0.03, eps=0.1, alpha=0.9),
}


def split(problem: Problem, strengths: tuple[float, ...]) -> list[EWC]:
    """Put one well of the problem into a memory of its own each; its penalty is theirs summed."""
    memories = []
    here = problem.weights()
    for (precision, anchor), strength in zip(problem.wells, strengths, strict=True):
        problem.set_weights(anchor["weight"], anchor["bias"])
        memory = EWC(problem.model, strength=strength)
        memory.anchor(precision)
        memories.append(memory)
    problem.set_weights(here[:4].unsqueeze(0), here[4:])
    problem.memory.strength = 1.0
    problem.wells = [
        ({name: strength * tensor for name, tensor in precision.items()}, anchor)
        for (precision, anchor), strength in zip(problem.wells, strengths, strict=True)
    ]
    return memories


@pytest.mark.parametrize(
    "hows",
    [("proximal", "proximal"), ("proximal", "gradient"), ("gradient", "gradient")],
    ids="+".join,
)
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
def test_two_memories_reach_the_minimum_of_the_sum_of_their_penalties(make, hows) -> None:
    problem = Problem()
    memories = split(problem, (0.5, 0.3))
    optimizer = make(problem.model)
    for memory, how in zip(memories, hows, strict=True):
        memory.attach(optimizer, how=how)
    problem.train(optimizer)
    torch.testing.assert_close(problem.weights(), problem.minimum(), rtol=0, atol=1e-8)


def summed_step(weight: Tensor, memories: list[EWC], rate: float) -> Tensor:
    """(θ + η Σ λP m) / (1 + η Σ λP)."""
    wells = [(memory.strength, memory._wells.active) for memory in memories]
    precision = sum(strength * well.precision["weight"] for strength, well in wells)
    moment = sum(s * well.precision["weight"] * well.anchor["weight"] for s, well in wells)
    return (weight + rate * moment) / (1 + rate * precision)


@pytest.mark.parametrize("strengths", [(10.0, 10.0), (1e6, 1e6), (1e6, 1e-3), (0.0, 3.0)])
def test_the_steps_are_summed_and_not_composed(strengths: tuple[float, float]) -> None:
    problem, free = Problem(), Problem()
    memories = split(problem, strengths)
    optimizers = [SGD(p.model.parameters(), lr=0.2) for p in (problem, free)]
    handles = [memory.attach(optimizers[0]) for memory in memories]

    def check(pulling: list[EWC]) -> None:
        free.model.load_state_dict(problem.model.state_dict())
        problem.step(optimizers[0])
        free.step(optimizers[1])
        expected = summed_step(free.model.weight, pulling, 0.2)
        torch.testing.assert_close(problem.model.weight, expected, rtol=1e-12, atol=1e-12)

    check(memories)
    memories[0].strength *= 3.0
    check(memories)
    memories[1].anchor(0.5)
    check(memories)
    handles[0].remove()
    check(memories[1:])
    memories[0].attach(optimizers[0])
    check(memories)
    for handle in (handles[1], memories[0]._attachments[optimizers[0]]):
        handle.remove()
    check([])


def test_memories_of_other_selections_and_of_a_part_of_the_model_are_summed() -> None:
    """The part knows its parameters by other names."""
    model, twin = make_model(), make_model()
    whole = EWC(model, strength=2.0)
    trunk = EWC(model, strength=3.0, parameters="!head.*")
    head = EWC(model.head, strength=5.0)
    for seed, memory in enumerate((whole, trunk, head)):
        move(model, seed)
        memory.anchor(1.0 + seed)
    optimizers = [SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    for memory in (whole, trunk, head):
        memory.attach(optimizers[0])
    before = copy.deepcopy(model)
    for m in (model, twin):
        m.load_state_dict(before.state_dict())
    optimizers[0].zero_grad()
    optimizers[0].step()  # without a gradient the pull alone moves the weights

    names = {id(p): name for name, p in model.named_parameters()}
    for name, parameter in before.named_parameters():
        precision, moment = 0.0, 0.0
        for memory in (whole, trunk, head):
            held = memory._pull_state()
            for own, p in held.parameters.items():
                if own in held.well.precision and names[id(p)] == name:
                    precision += memory.strength * held.well.precision[own]
                    moment += memory.strength * held.well.precision[own] * held.well.anchor[own]
        expected = (parameter + 0.1 * moment) / (1 + 0.1 * precision)
        actual = model.get_parameter(name)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_the_closure_of_a_line_search_returns_the_sum_of_all_penalties() -> None:
    problem = Problem()
    memories = split(problem, (0.7, 2.0))
    optimizer = LBFGS(
        problem.model.parameters(),
        max_iter=300,
        tolerance_grad=1e-12,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    for memory in memories:
        memory.attach(optimizer, how="gradient")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = problem.loss()
        loss.backward()
        return loss

    whole = problem.loss() + problem.penalty()
    torch.testing.assert_close(optimizer.step(closure), whole.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(problem.weights(), problem.minimum(), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "make",
    [lambda p: SGD(p, lr=0.1), lambda p: OwnSteps(p, lr=0.1)],
    ids=["sgd", "with a step_size of its own"],
)
def test_an_attached_optimizer_is_not_kept_alive(make) -> None:
    model = nn.Linear(3, 2)
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    optimizer: Optimizer = make(model.parameters())
    memory.attach(optimizer)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert not memory._attachments


def test_a_removed_handle_leaves_no_pull_on_layers_waiting():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 4))  # K > 1
    optimizer = SGD(model.parameters(), lr=0.1)
    memory = EWC(model, strength=1000.0, curvature="kronecker")
    handle = memory.attach(optimizer)
    memory.consolidate([torch.randn(64, 300)])
    with torch.no_grad():
        model[0].weight.add_(0.01)
    model(torch.randn(8, 300)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()  # of no gradient
    distance = memory.penalty().item()
    handle.remove()
    assert memory.penalty().item() < 0.9 * distance


def test_a_warm_up_that_begins_at_a_learning_rate_of_zero_leaves_layers_finite():
    model = nn.Linear(20, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 5)
    memory = EWC(model, strength=10.0, curvature="kronecker")
    memory.attach(optimizer)
    memory.consolidate([torch.randn(64, 20)])
    start = model.weight.detach().clone()
    for steps in range(4):
        assert torch.equal(model.weight, start) == (steps < 2)  # the first step has a rate of zero
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().sum().backward()
        optimizer.step()
        schedule.step()
    memory.settle()
    assert model.weight.isfinite().all()
