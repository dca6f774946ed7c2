"""Each optimizer's steps are those of its rule, and with the pull it rests at the minimum."""

import math
import random
from collections.abc import Callable

import pytest
import torch
from support.memory import Problem, distances, step_sizes
from torch import nn
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

import ewc
from ewc.diagnostics import EWCWarning
from ewc.step_size import (
    GAIN,
    MomentumGains,
    StepSize,
    adagrad_step_size,
    adam_step_size,
    bias_corrections,
    explicit_rate,
    nadam_step_size,
    radam_step_size,
    stability_limit,
    step_size_rule,
)


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
    monkeypatch.setattr("ewc.step_size.on_cpu", lambda states: False)
    found = [float(one) for one in bias_corrections(beta, states)]
    assert found[:3] == pytest.approx(expected[:3], rel=1e-5)
    assert float(bias_corrections(beta, [{"step": torch.tensor(0.0)}])[0]) > 0  # skipped so far


def test_a_scale_of_squares_is_rooted_and_eps_is_added() -> None:
    squares = [torch.tensor([4.0, 0.0]), torch.tensor([9.0], dtype=torch.bfloat16)]
    step = StepSize(0.5, squares, 0.1).rooted()
    assert step.eps is None
    assert [one.dtype for one in step.scale] == [torch.float32, torch.float32]
    torch.testing.assert_close(torch.cat(step.scale), torch.tensor([2.1, 0.1, 3.1]))
    assert StepSize(0.5).rooted() == StepSize(0.5)
    assert StepSize(0.5, squares).rooted().scale is squares


def test_unknown_steps_are_refused_and_the_gradient_pull_is_named() -> None:
    class OwnStep(SGD):
        def step(self, closure=None):
            return super().step(closure)

    problem = Problem()
    for optimizer in (Adadelta(problem.model.parameters()), OwnStep(problem.model.parameters())):
        with pytest.raises(ValueError, match=r"not those of [\w.<>]+; use .*how='gradient'"):
            problem.memory.attach(optimizer)
        problem.memory.attach(optimizer, how="gradient")


def test_an_optimizer_of_the_same_name_is_told_apart_and_the_callback_is_named() -> None:
    """As the Adafactor of transformers, where torch.optim has one that is known."""

    class Adafactor(SGD):
        def step(self, closure=None):
            return super().step(closure)

    problem = Problem()
    with pytest.raises(ValueError, match="not those of") as raised:
        problem.memory.attach(Adafactor(problem.model.parameters()))
    message = str(raised.value)
    assert f"not those of {__name__}.test_an_" in message
    assert "<locals>.Adafactor; use attach(optimizer, how='gradient')" in message
    assert "EWCCallback(memory, how='gradient')" in message


class SameStep(SGD):
    pass


class Halved(SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=group["lr"] / 2)

    def step_size(self, group, parameters, states):
        return StepSize(group["lr"] / 2)


def test_a_number_called_step_size_is_no_rule() -> None:
    problem = Problem()
    optimizer = SGD(problem.model.parameters(), lr=0.3)
    optimizer.step_size = 0.1  # type: ignore[attr-defined]
    problem.memory.attach(optimizer)
    problem.train(optimizer)
    torch.testing.assert_close(problem.weights(), problem.minimum(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", [SameStep, Halved])
def test_a_subclass_that_keeps_the_step_or_says_its_own_is_known(kind: type[SGD]) -> None:
    problem = Problem()
    optimizer = kind(problem.model.parameters(), lr=0.3)
    problem.memory.attach(optimizer)
    minimum = problem.minimum()
    problem.train(optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=0.1, momentum=0.9),
        lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
        lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: SGD([{"params": p[:1], "nesterov": True}, {"params": p[1:]}], 0.1, momentum=0.9),
        lambda p: RMSprop(p, lr=0.1, momentum=0.9, alpha=0.0),
    ],
    ids=["sgd", "dampening", "nesterov", "groups", "rmsprop"],
)
def test_steps_have_their_sizes_while_the_momentum_changes_and_gradients_are_missing(make) -> None:
    """Gradients that stay the same move each weight by η, as long as it has a gradient."""
    rng = random.Random(0)
    weights = [nn.Parameter(torch.randn(4, dtype=torch.float64)) for _ in range(3)]
    gradients = [torch.randn_like(weight) for weight in weights]
    optimizer, gains = make(weights), MomentumGains()
    different = set()
    for step in range(400):
        before = [weight.detach().clone() for weight in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            missing = step > 300 and rng.random() < 0.3
            weight.grad = None if missing else gradient.clone()
        if step > 300:
            for group in optimizer.param_groups:
                group["momentum"] = rng.choice([0.0, 0.5, 0.9, 0.95])
                group["lr"] = rng.choice([0.1, 0.2])
        optimizer.step()
        found = gains.follow(optimizer)
        different.add(len(set(found.values())))
        for group in optimizer.param_groups if step > 300 else ():
            moved = [n for n, w in enumerate(weights) if any(w is p for p in group["params"])]
            states = [
                {**optimizer.state[w], **({GAIN: found[id(w)]} if id(w) in found else {})}
                for n in moved
                for w in [weights[n]]
            ]
            eta = step_size_rule(optimizer)(group, [weights[n] for n in moved], states).rooted()
            for place, n in enumerate(moved):
                if weights[n].grad is not None:
                    scale = 1.0 if eta.scale is None else eta.scale[place]
                    change = (before[n] - weights[n].detach()) / gradients[n]
                    known = (eta.rate / scale) * torch.ones_like(change)
                    torch.testing.assert_close(change, known, rtol=1e-6, atol=0)
    assert max(different) >= 2


def test_a_momentum_that_is_constant_again_is_no_longer_followed() -> None:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer, gains = SGD([weight], lr=0.1, momentum=0.9), MomentumGains()
    for momentum, followed in ((0.9, False), (0.5, True)):
        optimizer.param_groups[0]["momentum"] = momentum
        assert bool(gains.follow(optimizer)) == followed
    assert not all(gains.follow(optimizer) for _ in range(60))
    assert not gains.follow(optimizer)
    added = nn.Parameter(torch.zeros(1))
    optimizer.add_param_group({"params": [added], "momentum": 0.2})
    assert not gains.follow(optimizer)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=1.0),
        lambda p: SGD(p, lr=1.0, momentum=0.9),
        lambda p: SGD(p, lr=1.0, momentum=0.5, dampening=0.3),
        lambda p: SGD(p, lr=1.0, momentum=0.9, nesterov=True),
        lambda p: ASGD(p, lr=1.0, lambd=0.0),
        lambda p: ASGD(p, lr=1.0, lambd=0.01, alpha=0.0),
    ],
    ids=["sgd", "momentum", "dampening", "nesterov", "asgd", "asgd with decay"],
)
def test_the_explicit_pull_diverges_beyond_the_limit_and_not_below(make) -> None:
    """One weight at 1, held at 0 with precision 1, and no loss at all."""
    for factor, diverges in ((0.97, False), (1.03, True)):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = make([weight])
        optimizer.param_groups[0]["lr"] = factor * stability_limit(
            optimizer, optimizer.param_groups[0]
        )
        weight.data.fill_(1.0)
        for _ in range(2000):
            weight.grad = weight.detach().clone()
            optimizer.step()
        assert (not abs(weight.item()) < 1) == diverges


def test_the_rate_of_asgd_that_counts_is_the_present_one() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = ASGD([weight], lr=1.0, lambd=1.0, alpha=1.0)
    assert explicit_rate(optimizer, optimizer.param_groups[0], weight) == 1.0
    for _ in range(9):
        weight.grad = torch.zeros(1)
        optimizer.step()
    assert float(explicit_rate(optimizer, optimizer.param_groups[0], weight)) == pytest.approx(0.1)


def test_no_limit_is_known_for_optimizers_that_divide_by_the_gradient() -> None:
    optimizer = Adam([nn.Parameter(torch.zeros(1))])
    assert stability_limit(optimizer, optimizer.param_groups[0]) == math.inf


Make = Callable[[list[nn.Parameter]], Optimizer]

# By name, an optimizer and the sign of its gradients.
STEPS: dict[str, tuple[Make, float]] = {
    "adam": (lambda p: Adam(p, lr=0.02, betas=(0.8, 0.9)), 1),
    "amsgrad": (lambda p: Adam(p, lr=0.02, betas=(0.8, 0.9), amsgrad=True), 1),
    "nadam": (lambda p: NAdam(p, lr=0.02), 1),
    "fast nadam": (lambda p: NAdam(p, lr=0.02, betas=(0.8, 0.9), momentum_decay=0.5), 1),
    "radam": (lambda p: RAdam(p, lr=0.02, betas=(0.8, 0.9)), 1),
    "radam with a long average": (lambda p: RAdam(p, lr=0.02, betas=(0.8, 0.999), eps=0.1), 1),
    "rmsprop": (lambda p: RMSprop(p, lr=0.02, alpha=0.9), 1),
    "adagrad": (lambda p: Adagrad(p, lr=0.2), 1),
    "adagrad with all": (
        lambda p: Adagrad(p, lr=0.2, lr_decay=0.1, initial_accumulator_value=0.5, eps=0.3),
        1,
    ),
    "adafactor": (lambda p: Adafactor(p), 1),
    "adafactor, small steps": (lambda p: Adafactor(p, lr=1e-3), 1),
    "adafactor, large eps": (lambda p: Adafactor(p, lr=0.1, eps=(0.3, 2.0)), 1),
    "adafactor, hardly clipped": (lambda p: Adafactor(p, lr=0.05, d=20.0, beta2_decay=-0.3), 1),
    "adafactor, foreach": (lambda p: Adafactor(p, lr=0.05, foreach=True), 1),
    "adafactor, maximizing": (lambda p: Adafactor(p, lr=0.1, maximize=True), -1),
}


@pytest.mark.parametrize(("make", "sign"), STEPS.values(), ids=STEPS)
def test_each_step_is_as_large_as_the_rule_says(make: Make, sign: float) -> None:
    """Also the first ones of RAdam, which it does not divide."""
    for known, moved in step_sizes(make, 20, sign):
        torch.testing.assert_close(known, moved, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("rule", "key", "expected"),
    [
        (adam_step_size, "exp_avg_sq", [0.1 / ((4 / (1 - 0.99**t)) ** 0.5 + 1e-3) for t in (1, 5)]),
        (adagrad_step_size, "sum", [0.1 / 2.001, 0.1 / 3 / 2.001]),
    ],
)
def test_parameters_with_different_step_counts_have_their_own(rule, key, expected) -> None:
    group = {"lr": 0.1, "betas": (0.9, 0.99), "lr_decay": 0.5, "eps": 1e-3}
    states = [{"step": torch.tensor(t), key: torch.tensor([4.0])} for t in (1.0, 5.0)]
    step = rule(group, [torch.zeros(1)] * 2, states).rooted()
    rates = [step.rate / float(scale) for scale in step.scale]
    assert rates == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("on_device", [False, True])
def test_parameters_of_radam_with_different_step_counts_have_their_own(
    on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has taken 40 steps, the second 2, the third none: these two are not divided."""
    monkeypatch.setattr("ewc.step_size.on_cpu", lambda states: not on_device)
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
    monkeypatch.setattr("ewc.step_size.on_cpu", lambda states: not on_device)
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


@pytest.mark.parametrize("strength", [0.7, 1000.0])
def test_centered_rmsprop_without_noise_is_warned_of(strength: float) -> None:
    problem = Problem(strength)
    optimizer = RMSprop(problem.model.parameters(), lr=1e-3, centered=True, momentum=0.9)
    with pytest.warns(EWCWarning, match="hardly vary from step to step") as caught:
        distances(problem, optimizer, 1800)
    assert len([one for one in caught if "hardly vary" in str(one.message)]) == 1


def test_the_state_of_centered_rmsprop_is_its_own() -> None:
    torch.manual_seed(0)
    model = nn.Linear(50, 50)
    memory = ewc.EWC(model, strength=1.0)
    memory.anchor(1.0)
    optimizer = RMSprop(model.parameters(), lr=1e-3, centered=True, alpha=0.9)
    memory.attach(optimizer)
    squares = torch.zeros_like(model.weight)
    for _ in range(40):
        model.weight.grad = torch.randn_like(model.weight)
        squares = squares.mul(0.9).addcmul(model.weight.grad, model.weight.grad, value=1 - 0.9)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[model.weight]["square_avg"], squares)


@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_adagrad_comes_to_rest_at_the_minimum(how: str) -> None:
    """Slowly: the gradient of the loss, which the pull balances, is summed at every step."""
    problem = Problem()
    optimizer = Adagrad(problem.model.parameters(), lr=1.0, lr_decay=1e-4)
    problem.memory.attach(optimizer, how=how)
    for _ in range(2500):
        problem.step(optimizer)
    torch.testing.assert_close(problem.weights(), problem.minimum(), rtol=0, atol=1e-8)


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
        monkeypatch.setattr("ewc.step_size.on_cpu", lambda states, on_cpu=on_cpu: on_cpu)
        problem = Problem()
        optimizer = AdamW(problem.model.parameters(), lr=1e-2, weight_decay=weight_decay)
        problem.memory.attach(optimizer)
        for _ in range(30):
            problem.step(optimizer)
        weights.append(problem.weights())
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [AdamW, NAdam, RAdam])
def test_a_parameter_that_misses_a_step_changes_nothing_for_the_others(
    make: Callable[..., Optimizer],
) -> None:
    """From then on the parameters of a group have taken different numbers of steps."""
    options = {} if make is AdamW else {"decoupled_weight_decay": True}
    first = {
        misses: _first_of_two(make, misses, weight_decay=0.2, **options) for misses in (False, True)
    }
    torch.testing.assert_close(first[True], first[False], rtol=1e-9, atol=1e-9)


def _first_of_two(make: Callable[..., Optimizer], misses: bool, **options: float) -> torch.Tensor:
    """Train two parameters, the second of which may miss a step, and return the first."""
    random = torch.Generator().manual_seed(0)
    start = torch.randn(2, 8, generator=random, dtype=torch.float64)
    model = nn.ParameterList(nn.Parameter(row.clone()) for row in start)
    memory = ewc.EWC(model, strength=3.0)
    memory.anchor(1.0)
    with torch.no_grad():
        model[0].add_(1.0)
    optimizer = make(model.parameters(), lr=0.05, **options)
    memory.attach(optimizer)
    for step in range(40):
        model[0].grad = 1 + torch.randn(8, generator=random, dtype=torch.float64)
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
    monkeypatch.setattr("ewc.step_size.on_cpu", lambda states: False)
    torch.testing.assert_close(
        _first_of_two(make, misses, **options),
        expected,
        rtol=0,
        atol=5e-4,  # r in float32
    )
