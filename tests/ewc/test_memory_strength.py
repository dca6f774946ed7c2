"""A memory with a budget ends where the loss is smallest among the weights that keep it."""

import copy
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.held_regression import Problem
from support.small_memory import (
    equation_3,
    learn,
    make_batches,
    make_model,
    move,
    one_step,
    weights,
)
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ewc.budget import AUTO_DISTANCE
from ewc.memory import EWC

MAKE: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.02, momentum=0.9),
    "adam": partial(Adam, lr=0.005),
}


def budgeted(budget: float, scale: float = 1.0) -> Problem:
    """The regression, held by one well of a known scale; plain training would leave it far."""
    problem = Problem()
    precision, anchor = problem.wells[0]
    problem.wells = [({name: scale * tensor for name, tensor in precision.items()}, anchor)]
    problem.memory = EWC(problem.model, budget=budget * scale)
    problem.set_weights(anchor["weight"], anchor["bias"])
    problem.memory.anchor(problem.wells[0][0])
    return problem


def train(problem: Problem, optimizer: Optimizer, steps: int = 1000) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        problem.loss().backward()
        optimizer.step()


@pytest.mark.parametrize("how", ["proximal", "gradient"])
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_training_rests_at_the_budget(make, how) -> None:
    """The multiplier of the constraint: the weights minimize the loss plus this penalty."""
    problem = budgeted(0.05)
    optimizer = make(problem.model.parameters())
    problem.memory.attach(optimizer, how=how)
    train(problem, optimizer, 2000)
    assert problem.memory.estimated_rise() == pytest.approx(0.05, rel=0.01)
    torch.testing.assert_close(problem.weights(), problem.minimum(), rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_the_scale_of_the_precision_does_not_matter(scale) -> None:
    ends = []
    for problem in (budgeted(0.05), budgeted(0.05, scale)):
        optimizer = SGD(problem.model.parameters(), lr=0.1)
        problem.memory.attach(optimizer)
        train(problem, optimizer, 2000)
        ends.append((problem.weights(), problem.memory.strength))
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-3, atol=1e-4)
    assert ends[1][1] * scale == pytest.approx(ends[0][1], rel=0.01)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_training_that_does_not_reach_the_budget_is_plain(make) -> None:
    problem = budgeted(1000.0)
    free = copy.deepcopy(problem)
    for each in (problem, free):
        optimizer = make(each.model.parameters())
        if each is problem:
            each.memory.attach(optimizer)
        train(each, optimizer)
    assert problem.memory.estimated_rise() < 1000.0
    assert problem.memory.strength < 1e-9
    torch.testing.assert_close(problem.weights(), free.weights(), rtol=1e-6, atol=1e-8)


def test_a_penalty_in_the_loss_keeps_the_budget_too() -> None:
    problem = budgeted(0.05)
    optimizer = SGD(problem.model.parameters(), lr=0.1)
    for _ in range(1000):
        optimizer.zero_grad()
        (problem.loss() + problem.memory.penalty()).backward()
        optimizer.step()
    assert problem.memory.estimated_rise() == pytest.approx(0.05, rel=0.01)


def test_several_memories_keep_their_own_budgets() -> None:
    """The tighter one rules where they hold the same weights; the other one does not pull."""
    problem = budgeted(0.05)
    looser = EWC(problem.model, budget=0.5)
    looser.anchor(problem.wells[0][0])
    optimizer = SGD(problem.model.parameters(), lr=0.1)
    for memory in (problem.memory, looser):
        memory.attach(optimizer)
    train(problem, optimizer)
    assert problem.memory.estimated_rise() == pytest.approx(0.05, rel=0.01)
    assert looser.strength < 1e-9


def test_a_penalty_that_is_only_displayed_adapts_nothing() -> None:
    problem = budgeted(0.05)
    move(problem.model, seed=1)
    before = problem.memory._control
    with torch.no_grad():
        problem.memory.penalty()
    problem.memory.estimated_rise()
    assert problem.memory._control == before


def test_the_estimate_is_the_mean_over_the_tasks_above_the_least_possible() -> None:
    model = make_model()
    memory = EWC(model, keep_tasks=True)
    wells = {task: learn(memory, model, task, seed) for seed, task in enumerate("ABC")}
    move(model, seed=7)

    def mean_of(*tasks: str) -> float:
        held = [wells[task] for task in tasks]
        best = make_model()
        with torch.no_grad():
            for name, p in best.named_parameters():  # the smallest possible sum of all
                total = sum(fisher[name] for fisher, _ in held)
                p.copy_(sum(fisher[name] * anchor[name] for fisher, anchor in held) / total)
            rises = [float(equation_3(each, held, 1.0)) for each in (model, best)]
        return (rises[0] - rises[1]) / len(tasks)

    assert memory.estimated_rise() == pytest.approx(mean_of(*"ABC"), rel=1e-9)
    with memory.without("B"):
        assert memory.estimated_rise() == pytest.approx(mean_of(*"AC"), rel=1e-9)
    memory.forget("A")
    assert memory.estimated_rise() == pytest.approx(mean_of(*"BC"), rel=1e-9)


def test_the_estimate_with_decay_is_a_weighted_mean_around_the_last_weights() -> None:
    model = make_model()
    memory = EWC(model, decay=0.5)
    fishers = [learn(memory, model, task, seed)[0] for seed, task in enumerate("ABC")]
    last = weights(model)
    move(model, seed=7)
    with torch.no_grad():
        rises = [float(equation_3(model, [(fisher, last)], 1.0)) for fisher in fishers]
    expected = (0.25 * rises[0] + 0.5 * rises[1] + rises[2]) / 1.75
    assert memory.estimated_rise() == pytest.approx(expected, rel=1e-9)


def test_without_tasks_nothing_has_risen() -> None:
    model = make_model()
    memory = EWC(model)
    memory.attach(optimizer := SGD(model.parameters(), lr=0.1))
    one_step(model, optimizer, make_batches(0)[0])
    assert memory.estimated_rise() == 0.0


def test_there_is_a_strength_or_a_budget() -> None:
    model = make_model()
    assert EWC(model).budget == EWC(model, budget="auto").budget == "auto"
    assert EWC(model, strength=3.0).budget is None
    assert repr(EWC(model, budget=0.2)) == "EWC(budget=0.2, decay=1.0, tasks=[])"
    assert repr(EWC(model)) == "EWC(budget='auto', decay=1.0, tasks=[])"
    with pytest.raises(ValueError, match=r"a strength or a budget, got strength=1\.0"):
        EWC(model, strength=1.0, budget=0.1)


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf"), "large"])
def test_a_bad_budget_is_refused(budget) -> None:
    with pytest.raises(ValueError, match="finite budget > 0 or 'auto', got"):
        EWC(make_model(), budget=budget)
    memory = EWC(make_model(), budget=0.3)
    with pytest.raises(ValueError, match="finite budget > 0 or 'auto', got"):
        memory.budget = budget
    assert memory.budget == 0.3


def test_what_is_allowed_is_a_share_of_the_estimate_at_zero_weights() -> None:
    """The mean over the tasks of ½ Σ F θ*², also of those that are left."""
    model = make_model()
    memory = EWC(model, keep_tasks=True)
    assert memory.allowed_rise() == 0.0
    wells = {task: learn(memory, model, task, seed) for seed, task in enumerate("ABC")}

    def share_of(*tasks: str) -> float:
        zero = make_model()
        with torch.no_grad():
            for p in zero.parameters():
                p.zero_()
            rise = equation_3(zero, [wells[task] for task in tasks], 1.0)
        return AUTO_DISTANCE**2 * float(rise) / len(tasks)

    for _ in range(2):  # computed, then remembered
        assert memory.allowed_rise() == pytest.approx(share_of(*"ABC"), rel=1e-12)
    with memory.without("B"):
        assert memory.allowed_rise() == pytest.approx(share_of(*"AC"), rel=1e-12)
    memory.forget("A")
    assert memory.allowed_rise() == pytest.approx(share_of(*"BC"), rel=1e-12)
    memory.budget = 0.25
    assert memory.allowed_rise() == 0.25
    memory.strength = 1.0
    assert memory.allowed_rise() == float("inf")


def test_without_a_budget_training_stays_where_it_is_allowed() -> None:
    """Not quite at rest: between two measurements, up to 16 steps, it moves on by a few percent."""
    problem = budgeted(1.0)
    problem.memory.budget = "auto"
    optimizer = SGD(problem.model.parameters(), lr=0.01)
    problem.memory.attach(optimizer)
    train(problem, optimizer, 2000)
    assert problem.memory.allowed_rise() > 0
    assert problem.memory.estimated_rise() == pytest.approx(problem.memory.allowed_rise(), rel=0.1)


def test_a_memory_of_zeros_has_no_scale_of_its_own() -> None:
    model = make_model()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    memory = EWC(model)
    memory.anchor(1.0)
    memory.attach(optimizer := SGD(model.parameters(), lr=0.1))
    move(model, seed=1)
    with pytest.raises(ValueError, match="give a budget in nats"):
        one_step(model, optimizer, make_batches(0)[0])


def test_what_is_set_last_counts() -> None:
    problem = budgeted(0.05)
    problem.memory.strength = 3.0
    assert problem.memory.budget is None
    optimizer = SGD(problem.model.parameters(), lr=0.1)
    problem.memory.attach(optimizer)
    train(problem, optimizer, 50)
    assert problem.memory.strength == 3.0
    problem.memory.budget = 0.02
    train(problem, optimizer)
    assert problem.memory.estimated_rise() == pytest.approx(0.02, rel=0.01)


def train_networks(model, optimizer, steps: range) -> None:
    for step in steps:
        one_step(model, optimizer, make_batches(step)[0])


def through_state(model, optimizer, memory, folder):
    """New objects that load what a checkpoint has."""
    other = make_model()
    other.load_state_dict(model.state_dict())
    other_optimizer = AdamW(other.parameters(), lr=0.05)
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loaded = EWC(other, strength=1.0)
    loaded.load_state_dict(memory.state_dict())
    loaded.attach(other_optimizer)
    return other, other_optimizer, loaded


def through_file(model, optimizer, memory, folder):
    other, other_optimizer, _ = through_state(model, optimizer, memory, folder)
    memory.save(folder / "memory.safetensors")
    loaded = EWC.load(folder / "memory.safetensors", other)
    other_optimizer = AdamW(other.parameters(), lr=0.05)
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loaded.attach(other_optimizer)
    return other, other_optimizer, loaded


def through_copy(model, optimizer, memory, folder):
    return copy.deepcopy((model, optimizer, memory))


@pytest.mark.parametrize("budget", [1e-3, "auto"])
@pytest.mark.parametrize("steps", [3, 40])
@pytest.mark.parametrize("through", [through_state, through_file, through_copy])
def test_training_goes_on_bit_for_bit(through, steps, budget, tmp_path) -> None:
    model = make_model()
    memory = EWC(model, budget=budget)
    memory.consolidate(make_batches(100), task="A")
    memory.attach(optimizer := AdamW(model.parameters(), lr=0.05))
    train_networks(model, optimizer, range(steps))
    resumed, resumed_optimizer, loaded = through(model, optimizer, memory, tmp_path)
    assert (loaded.budget, loaded.strength) == (memory.budget, memory.strength)
    for each in ((model, optimizer), (resumed, resumed_optimizer)):
        train_networks(*each, range(steps, steps + 60))
    assert loaded._control == memory._control
    assert memory.strength > 0
    torch.testing.assert_close(weights(resumed), weights(model), rtol=0, atol=0)


def test_a_budget_under_which_the_weights_diverged_says_so_once() -> None:
    """An explicit penalty with momentum: the strength is raised beyond what is stable."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4).double()
    memory = EWC(model, budget=0.05)
    memory.anchor(7.0)
    target = model.weight.detach() + torch.randn(4, 6).double()
    optimizer = SGD(model.parameters(), lr=0.005, momentum=0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(500):
            optimizer.zero_grad()
            ((model.weight - target).square().sum() + memory.penalty()).backward()
            optimizer.step()
    assert [str(one.message)[:39] for one in caught] == ["the estimated rise is not finite: the w"]
