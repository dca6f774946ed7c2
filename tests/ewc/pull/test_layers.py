"""The pull on layers with Kronecker factors: where it rests, and when it is taken."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

import ewc.pull.kronecker
from ewc import EWC, KroneckerFactors, KroneckerFisher

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.2),
    "momentum": lambda p: optim.SGD(p, lr=0.04, momentum=0.9),
    "Nesterov": lambda p: optim.SGD(p, lr=0.04, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.02),
    "AdamW": lambda p: optim.AdamW(p, lr=0.02, weight_decay=0.0),
    "NAdam": lambda p: optim.NAdam(p, lr=0.02),
    "RAdam": lambda p: optim.RAdam(p, lr=0.05),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.02),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1.0),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1),
}


def positive(size: int) -> Tensor:
    root = torch.randn(size, 2 * size, dtype=torch.float64)
    return root @ root.t() / (2 * size)


def joined(model: nn.Linear) -> Tensor:
    return torch.cat([model.weight, model.bias.unsqueeze(1)], 1)


@pytest.mark.parametrize("steps_between", [1, 7])
@pytest.mark.parametrize("strength", [1e-2, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_rests_where_the_loss_and_the_penalty_are_smallest(
    name: str, strength: float, steps_between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss ½ (w − goal)ᵀ C (w − goal) and the penalty λ/2 (w − m)ᵀ (G ⊗ A) (w − m)."""
    monkeypatch.setattr(ewc.pull.kronecker, "steps_between_pulls", lambda layers: steps_between)
    torch.manual_seed(0)
    model = nn.Linear(2, 2).double()
    a, g, curvature = positive(3), positive(2), positive(6)
    start = joined(model).detach().flatten()
    goal = start + torch.randn(6, dtype=torch.float64)
    precision = strength * torch.kron(g, a)
    best = torch.linalg.solve(curvature + precision, curvature @ goal + precision @ start)

    memory = EWC(model, strength=strength, curvature="kronecker")
    memory.consolidate(KroneckerFisher({"weight": KroneckerFactors(a, g, "bias")}))
    optimizer = OPTIMIZERS[name](model.parameters())
    memory.attach(optimizer)
    rate, steps = optimizer.param_groups[0]["lr"], 1500
    for step in range(steps):
        # Adaptive steps do not shrink with the gradient: they need a rate that falls.
        adaptive = not isinstance(optimizer, optim.SGD)
        optimizer.param_groups[0]["lr"] = rate * ((1 - step / steps) ** 3 if adaptive else 1)
        apart = joined(model).flatten() - goal
        optimizer.zero_grad()
        (apart @ curvature @ apart / 2).backward()
        optimizer.step()
    memory.settle()
    moved = (best - start).abs().max()
    assert (joined(model).detach().flatten() - best).abs().max() < 1e-4 * max(1.0, float(moved))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(9, 1, 6, 6, generator=generator),
            torch.randint(4, (9,), generator=generator),
        )
        for _ in range(3)
    ]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, 4)
    )


def train(model: nn.Module, optimizer: optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        inputs, labels = batches()[step % 3]
        optimizer.zero_grad()
        cross_entropy(model(inputs), (labels + 1) % 4).backward()
        optimizer.step()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Sequential, optim.Optimizer, EWC]:
    """A model, its optimizer and its memory, three steps after the last of the pulls."""
    monkeypatch.setattr(ewc.pull.kronecker, "steps_between_pulls", lambda layers: 5)
    model = network()
    memory = EWC(model, strength=10.0, curvature="kronecker")
    memory.consolidate(batches(), task="A")
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    memory.attach(optimizer)
    train(model, optimizer, 23)
    return model, optimizer, memory


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


Waiting = tuple[nn.Sequential, optim.Optimizer, EWC]


def test_a_copy_goes_on_bit_for_bit_in_the_middle_of_a_wait(waiting: Waiting) -> None:
    model, optimizer, _ = waiting
    copied, its_optimizer, _ = copy.deepcopy(waiting)
    train(model, optimizer, 8)
    train(copied, its_optimizer, 8)
    assert torch.equal(weights(model), weights(copied))


def test_a_restored_training_goes_on_bit_for_bit_in_the_middle_of_a_wait(waiting: Waiting) -> None:
    model, optimizer, memory = waiting
    other = network()
    other.load_state_dict(model.state_dict())
    its_optimizer = optim.Adam(other.parameters(), lr=1e-2)
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    its_memory = EWC(other, strength=1.0, curvature="kronecker")
    its_memory.load_state_dict(memory.state_dict())
    its_memory.attach(its_optimizer)
    train(model, optimizer, 8)
    train(other, its_optimizer, 8)
    assert torch.equal(weights(model), weights(other))


def test_the_waiting_pull_is_taken_before_an_evaluation_and_not_in_training(
    waiting: Waiting,
) -> None:
    model, _, memory = waiting
    before, rise = weights(model), memory.estimated_rise()
    model(batches()[0][0])
    assert torch.equal(weights(model), before)
    model.eval()(batches()[0][0])
    assert memory.estimated_rise() < rise
    settled = weights(model)
    model(batches()[0][0])
    assert torch.equal(weights(model), settled)


@pytest.mark.parametrize("how", ["remove", "consolidate", "settle"])
def test_the_waiting_pull_is_taken_when_training_ends(waiting: Waiting, how: str) -> None:
    model, optimizer, memory = waiting
    rise = memory.estimated_rise()
    match how:
        case "remove":
            memory._attachments[optimizer].remove()
        case "consolidate":
            expected = copy.deepcopy(waiting)
            expected[2].settle()
            memory.consolidate(batches(), task="B")
            assert torch.equal(weights(model), weights(expected[0]))
            return
        case "settle":
            memory.settle()
    assert memory.estimated_rise() < rise


def test_a_warm_up_that_begins_at_a_learning_rate_of_zero_leaves_layers_finite() -> None:
    model = nn.Linear(20, 3)
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 5)
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
