"""A memory that cannot work says so, and one that can is silent."""

import warnings

import pytest
import torch
from torch import nn

from ewc.memory import EWC
from ewc.warnings import EWCWarning


def batches(n=8, features=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, features, generator=generator)
    return [(x, torch.randint(2, (n,), generator=generator))]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def move(model):
    with torch.no_grad():
        model[0].weight[0, 0] += 0.1


def test_a_fisher_of_zeros_is_told(model):
    for p in model.parameters():
        nn.init.zeros_(p)
    model[2].bias.requires_grad_(False)
    with pytest.warns(EWCWarning, match="zero for every weight"):
        EWC(model, strength=1.0).consolidate(batches())


def test_a_dead_layer_is_named(model):
    nn.init.constant_(model[0].bias, -100.0)
    with pytest.warns(EWCWarning, match="zero for all of 0: "):
        EWC(model, strength=1.0).consolidate(batches())


@pytest.mark.parametrize(("decay", "told"), [(1.0, []), (0.5, []), (0.0, ["heads.A"])])
def test_a_head_that_an_earlier_task_holds_is_not_named(decay, told):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleDict({task: nn.Linear(3, 2) for task in "AB"})

        def forward(self, x):
            return self.heads[self.task](x)

    model = Heads()
    memory = EWC(model, strength=1.0, decay=decay)
    model.task = "A"
    with pytest.warns(EWCWarning, match=r"zero for all of heads\.B: "):
        memory.consolidate(batches(), task="A")
    model.task = "B"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        memory.consolidate(batches(), task="B")
    assert [str(one.message).split(":")[0].removeprefix("the Fisher is zero for all of ")
            for one in caught] == told  # fmt: skip


def test_weights_that_moved_without_any_pull_are_told(model):
    memory = EWC(model, strength=1.0)
    memory.consolidate(batches())
    move(model)
    with pytest.warns(EWCWarning, match="nothing pulled") as caught:
        memory.consolidate(batches())
    assert caught[0].filename == __file__


def test_an_optimizer_that_is_not_the_attached_one_is_told(model):
    memory = EWC(model, strength=1.0)
    memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    memory.consolidate(batches())
    move(model)
    with pytest.warns(EWCWarning, match="nothing pulled"):
        memory.consolidate(batches())


def test_a_penalty_that_is_only_looked_at_is_no_pull(model):
    memory = EWC(model, strength=1.0)
    memory.consolidate(batches())
    move(model)
    with torch.no_grad():
        memory.penalty()
    with pytest.warns(EWCWarning, match="nothing pulled"):
        memory.consolidate(batches())


@pytest.mark.parametrize("use", ["attach", "penalty", "strength 0", "still"])
def test_silent_when_something_pulled_or_nothing_moved(model, use):
    memory = EWC(model, strength=0.0 if use == "strength 0" else 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        memory.consolidate(batches())
        if use in ("attach", "strength 0"):
            memory.attach(optimizer)
            optimizer.step()
        if use == "penalty":
            memory.penalty()
        if use != "still":
            move(model)
        memory.consolidate(batches())
    assert len(memory.tasks) == 2
