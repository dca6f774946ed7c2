"""Several memories on one optimizer pull as one memory with all of their wells would."""

import copy
import gc
import weakref

import pytest
import torch
from support.held_regression import Problem, one_step, train
from support.small_memory import make_model, move
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer, RMSprop

from ewc.memory import EWC
from ewc.step_size import StepSize


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
    train(problem, optimizer)
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
        one_step(problem, optimizers[0])
        one_step(free, optimizers[1])
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
            held = memory._fit_wells()
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
