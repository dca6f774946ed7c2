"""A copy of a memory is a memory: of its own model, and attached if its optimizer came along."""

import copy
import gc
import pickle

import pytest
import torch
from support.small_memory import make_batches, make_model, move, one_step, weights
from torch.optim import SGD, Adam

from ewc.memory import EWC


def through_pickle(things):
    return pickle.loads(pickle.dumps(things))


COPIES = [copy.deepcopy, through_pickle]


def trained(how="proximal", **options):
    """A model that is pulled by two tasks, and its optimizer and memory."""
    model = make_model()
    optimizer = Adam(model.parameters(), lr=0.01)
    memory = EWC(model, strength=2.0, **options)
    handle = memory.attach(optimizer, how=how)
    for seed, task in enumerate("AB"):
        move(model, seed)
        memory.anchor(1.0 + seed, task=task)
        one_step(model, optimizer, make_batches(seed)[0])
    return model, optimizer, memory, handle


@pytest.mark.parametrize("order", ["model optimizer memory", "memory optimizer model"])
@pytest.mark.parametrize("how", ["proximal", "gradient"])
@pytest.mark.parametrize("through", COPIES)
def test_a_model_an_optimizer_and_a_memory_copied_together_train_on_alike(order, how, through):
    things = dict(zip(("model", "optimizer", "memory", "handle"), trained(how), strict=True))
    names = order.split()
    copied = dict(zip(names, through(tuple(things[name] for name in names)), strict=True))
    gc.collect()
    for each in (things, copied):
        for seed in range(3):
            one_step(each["model"], each["optimizer"], make_batches(seed)[0])
    torch.testing.assert_close(weights(copied["model"]), weights(things["model"]), rtol=0, atol=0)

    # The copies are on their own: what happens to the originals does not touch them.
    things["handle"].remove()
    free = copy.deepcopy(copied["model"].state_dict())
    one_step(copied["model"], copied["optimizer"], make_batches(3)[0])
    pulled = weights(copied["model"])
    things["model"].load_state_dict(free)
    one_step(things["model"], things["optimizer"], make_batches(3)[0])
    assert not torch.equal(pulled["body.weight"], things["model"].body.weight)


@pytest.mark.parametrize("through", COPIES)
def test_a_handle_copied_along_removes_the_pull_of_the_copy(through):
    model, optimizer, memory, handle = through(trained())
    assert handle.attached
    handle.remove()
    twin = make_model()
    twin.load_state_dict(model.state_dict())
    plain = Adam(twin.parameters(), lr=0.01)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its in ((model, optimizer), (twin, plain)):
        one_step(each, its, make_batches(5)[0])
    assert torch.equal(model.body.weight, twin.body.weight)
    memory.attach(optimizer)


@pytest.mark.parametrize("through", COPIES)
@pytest.mark.parametrize("keep_tasks", [False, True])
def test_a_memory_copied_alone_has_a_model_of_its_own_and_can_be_attached(through, keep_tasks):
    model, optimizer, memory, _ = trained(keep_tasks=keep_tasks)
    copied = through(memory)
    gc.collect()
    assert not copied._attachments
    assert copied.tasks == ("A", "B")
    assert torch.equal(copied.penalty(), memory.penalty())
    move(model, 7)
    assert not torch.equal(copied.penalty(), memory.penalty())
    with pytest.raises(ValueError, match="has none of them"):
        copied.attach(optimizer)
    its_own = SGD(copied._parameters.model.parameters(), lr=0.1)
    copied.attach(its_own)
    before = copied.penalty().item()
    its_own.step()
    assert copied.penalty().item() < before


@pytest.mark.parametrize("through", COPIES)
def test_a_copy_made_within_without_has_all_tasks(through):
    _, _, memory, _ = trained(keep_tasks=True)
    with memory.without("A"):
        copied = through(memory)
        less = memory.penalty()
    assert torch.equal(copied.penalty(), memory.penalty())
    assert less < copied.penalty()


def test_several_memories_on_one_optimizer_are_copied_with_it():
    model, optimizer, memory, _ = trained()
    second = EWC(model, strength=5.0)
    second.anchor(1.0)
    second.attach(optimizer)
    copied = copy.deepcopy((model, optimizer, memory, second))
    for each in ((model, optimizer), copied):
        one_step(each[0], each[1], make_batches(3)[0])
    assert torch.equal(model.body.weight, copied[0].body.weight)
