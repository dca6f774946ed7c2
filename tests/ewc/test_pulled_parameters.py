"""What an optimizer and a memory have in common is pulled, group by group."""

import torch
from torch import nn
from torch.optim import Adam

from ewc.pull_state import PullState
from ewc.pulled_parameters import pulled_blocks, pulled_groups
from ewc.wells import uniform_precision, well_at


def example() -> tuple[nn.ModuleDict, Adam, PullState]:
    """Three layers: one in each group of the optimizer, and one that it does not have."""
    model = nn.ModuleDict({name: nn.Linear(2, 1) for name in "abc"})
    named = dict(model.named_parameters())
    groups = [{"params": model["b"].parameters(), "lr": torch.tensor(0.5)}]
    optimizer = Adam([*groups, {"params": model["a"].parameters()}], lr=0.1)
    state = PullState(named, well_at(named, uniform_precision(named, 2.0)), 1.0)
    return model, optimizer, state


def test_groups_have_the_names_of_what_is_held_and_trained() -> None:
    model, optimizer, state = example()
    model["a"].bias.requires_grad_(False)
    names = [names for _, names in pulled_groups(optimizer, state)]
    assert names == [["b.weight", "b.bias"], ["a.weight"]]


def test_blocks_have_all_that_belongs_to_a_parameter() -> None:
    model, optimizer, state = example()
    model["b"].weight.grad = torch.ones(1, 2)
    optimizer.step()
    (group, first), (_, second) = pulled_blocks(optimizer, state)
    assert isinstance(group["lr"], float)
    assert first.parameters == [model["b"].weight, model["b"].bias]
    assert first.gradients == [True, False]
    assert first.states[0]["exp_avg_sq"] is optimizer.state[model["b"].weight]["exp_avg_sq"]
    assert not first.states[1]
    assert torch.equal(second.precisions[0], torch.full((1, 2), 2.0))
    assert torch.equal(second.anchors[0], model["a"].weight)


def test_a_computed_weight_is_in_every_group_that_has_a_source_of_it() -> None:
    model, optimizer, state = example()
    b, a = model["b"].weight, model["a"].weight
    well = well_at({"product": a * b}, {"product": torch.ones(1, 2)})
    state = PullState({"product": a * b}, well, 1.0, {"product": (a, b, model["a"].bias)})
    assert [names for _, names in pulled_groups(optimizer, state)] == [["product"], ["product"]]
    b.requires_grad_(False)
    ((group, names),) = pulled_groups(optimizer, state)
    assert group["params"][0] is a
    assert names == ["product"]
