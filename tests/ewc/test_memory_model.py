"""The memory holds on to its model: to its optimizers, and to a shape that may change."""

import gc

import pytest
import torch
from support.small_memory import (
    assert_same_pull,
    equation_3,
    learn,
    make_batches,
    make_model,
    move,
    one_step,
    weights,
)
from torch import nn

from ewc.memory import EWC


def test_attached_early_it_pulls_from_the_first_consolidation_until_removed():
    model, twin = make_model(), make_model()
    batch = make_batches(5)[0]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    memory = EWC(model, strength=100.0)
    memory.attach(optimizers[0])
    gc.collect()  # the handle is gone, the pull is not

    def step():
        one_step(model, optimizers[0], batch)
        one_step(twin, optimizers[1], batch)

    step()
    assert torch.equal(model.body.weight, twin.body.weight)
    memory.consolidate(make_batches(1))
    step()
    assert not torch.equal(model.body.weight, twin.body.weight)


def test_a_removed_pull_no_longer_pulls_and_may_be_attached_again():
    model, twin = make_model(), make_model()
    batch = make_batches(5)[0]
    memory = EWC(model, strength=100.0)
    memory.anchor(1.0)
    move(model, 1)
    move(twin, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = memory.attach(optimizer)
    with pytest.raises(RuntimeError, match=r"already attached to this optimizer; call remove\(\)"):
        memory.attach(optimizer, how="gradient")
    handle.remove()
    handle.remove()
    one_step(model, optimizer, batch)
    one_step(twin, torch.optim.SGD(twin.parameters(), lr=0.1), batch)
    assert torch.equal(model.body.weight, twin.body.weight)
    memory.attach(optimizer)


def test_attach_refuses_strangers():
    memory = EWC(make_model(), strength=1.0)
    stranger = torch.optim.SGD(make_model().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="has none of them"):
        memory.attach(stranger)
    own = torch.optim.SGD(memory._parameters.model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="got how='magic'"):
        memory.attach(own, how="magic")
    memory.attach(own)


def test_without_frees_a_task_from_its_own_pull():
    model = make_model()
    memory = EWC(model, strength=1e9, keep_tasks=True)
    memory.anchor(1.0, task="A")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer)
    batch = make_batches(5)[0]
    before = weights(model)
    one_step(model, optimizer, batch)
    torch.testing.assert_close(weights(model), before, rtol=0, atol=1e-8)
    with memory.without("A"):
        one_step(model, optimizer, batch)
    assert not torch.allclose(model.body.weight, before["body.weight"], atol=1e-4)


def grow_head(model, outputs):
    old = model.head
    model.head = nn.Linear(5, outputs).double()
    with torch.no_grad():
        model.head.weight[: old.out_features] = old.weight
        model.head.bias[: old.out_features] = old.bias


@pytest.mark.parametrize("keep_tasks", [False, True])
def test_a_head_that_grows_is_held_on_its_old_part(keep_tasks):
    model = make_model(outputs=2)
    memory = EWC(model, strength=5.0, keep_tasks=keep_tasks)
    move(model, 1)
    f_a, at_a = memory.consolidate(make_batches(1, outputs=2), task="A"), weights(model)
    grow_head(model, 4)

    def old_part(model):
        return {
            name: p[:2] if name.startswith("head") else p for name, p in model.named_parameters()
        }

    def penalty_a():
        old = old_part(model)
        return sum(5.0 / 2 * (f_a[name] * (old[name] - at_a[name]) ** 2).sum() for name in f_a)

    move(model, 2)
    assert_same_pull(model, memory.penalty(), penalty_a())
    f_b, at_b = memory.consolidate(make_batches(2, outputs=4), task="B"), weights(model)
    move(model, 3)
    assert_same_pull(model, memory.penalty(), penalty_a() + equation_3(model, [(f_b, at_b)], 5.0))
    if keep_tasks:
        memory.forget("B")
        assert_same_pull(model, memory.penalty(), penalty_a())


def test_a_grown_head_is_pulled_on_its_old_part_and_trains_on_the_new():
    model = make_model(outputs=2)
    memory = EWC(model, strength=1e12)
    memory.anchor(1.0)
    grow_head(model, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    memory.attach(optimizer)
    before = weights(model)
    one_step(model, optimizer, make_batches(1, outputs=4)[0])
    torch.testing.assert_close(model.head.bias[:2].detach(), before["head.bias"][:2])
    assert not torch.isclose(model.head.bias[2:], before["head.bias"][2:]).any()


def test_a_head_may_grow_while_a_task_is_set_aside():
    model = make_model(outputs=2)
    memory = EWC(model, strength=5.0, keep_tasks=True)
    twin = EWC(model, strength=5.0)
    for task, seed in (("A", 1), ("B", 2)):
        move(model, seed)
        memory.anchor(seed, task=task)
        twin.anchor(seed, task=task)
    with memory.without("A"):
        grow_head(model, 4)
        move(model, 3)
        assert 0 < memory.penalty() < twin.penalty()
    assert_same_pull(model, memory.penalty(), twin.penalty())


def test_a_head_that_shrank_is_named():
    model = make_model(outputs=3)
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    model.head = nn.Linear(5, 2).double()
    with pytest.raises(ValueError, match=r"'head.weight'.*\(3, 5\) to \(2, 5\)"):
        memory.penalty()


def test_parameters_that_appear_later_join_at_the_next_consolidation():
    model = make_model()
    memory = EWC(model, strength=2.0)
    a = learn(memory, model, "A", 1)
    model.add_module("extra", nn.Linear(3, 3).double())
    move(model, 2)
    assert_same_pull(model, memory.penalty(), equation_3(model, [a], 2.0))
    b = learn(memory, model, "B", 3)
    assert "extra.weight" in b[0]
    move(model, 4)
    assert_same_pull(model, memory.penalty(), equation_3(model, [a, b], 2.0))


def test_a_parameter_that_vanished_is_named_unless_it_was_left_out():
    model = make_model()
    memory = EWC(model, strength=1.0)
    trunk = EWC(model, strength=1.0, parameters="!head.*")
    memory.anchor(1.0)
    trunk.anchor(1.0)
    model.head = nn.Identity()
    with pytest.raises(ValueError, match=r"protects 'head\.weight', which the model no longer has"):
        memory.penalty()
    assert trunk.penalty().item() == 0.0


def test_parameters_left_out_are_not_held():
    model = make_model()
    memory = EWC(model, strength=1.0, parameters=iter(["!head.*"]))
    fisher = memory.consolidate(make_batches(1))
    assert list(fisher) == ["body.weight", "body.bias"]
    with torch.no_grad():
        model.head.weight.add_(1.0)
    assert memory.penalty().item() == 0.0


def test_wrapped_models_are_held_under_their_own_names():
    model = make_model()
    memory = EWC(nn.DataParallel(torch.compile(model, backend="eager")), strength=1.0)
    assert "head.bias" in memory.consolidate(make_batches(1))


def test_the_memory_follows_the_model_to_another_type():
    model = make_model().float()
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    model.double()
    move(model, 1)
    assert memory.penalty().dtype == torch.float64
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer)
    optimizer.step()
