"""Tasks come back: replaced, set aside or dropped, they leave the others as if alone."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.memory import assert_same_pull, equation_3, learn, make_batches, make_model, move

from ewc.memory import EWC


def test_a_name_used_twice_is_refused_without_keep_tasks():
    model = make_model()
    memory = EWC(model, strength=1.0)
    memory.consolidate(make_batches(1), task="A")
    with pytest.raises(ValueError, match=r"already has a task 'A'.*keep_tasks=True"):
        memory.consolidate(make_batches(1), task="A")


@settings(max_examples=25)
@given(
    tasks=st.lists(st.sampled_from("ABCD"), min_size=1, max_size=6),
    gone=st.sets(st.sampled_from("ABCD")),
    decay=st.sampled_from([1.0, 0.6]),
)
def test_forget_and_without_equal_a_memory_of_the_remaining_tasks(tasks, gone, decay):
    """Tasks consolidated again replace their well; the newest comes last."""
    model = make_model()
    memory = EWC(model, strength=3.0, keep_tasks=True, decay=decay)
    wells = {}
    for seed, task in enumerate(tasks):
        wells.pop(task, None)
        wells[task] = learn(memory, model, task, seed)
    gone &= wells.keys()
    move(model, 99)
    here = copy.deepcopy(model.state_dict())

    rest = EWC(model, strength=3.0, decay=decay)
    for task, (fisher, anchor) in wells.items():
        if task not in gone:
            model.load_state_dict(anchor)
            rest.anchor(fisher, task=task)
    model.load_state_dict(here)
    assert memory.tasks == tuple(wells)

    whole = memory.penalty()
    with memory.without(*gone):
        if rest.tasks:
            assert_same_pull(model, memory.penalty(), rest.penalty())
            assert memory.estimated_rise() == pytest.approx(rest.estimated_rise(), rel=1e-4)
        else:
            assert memory.penalty().item() == 0.0
    assert torch.equal(memory.penalty(), whole)

    for task in gone:
        memory.forget(task)
    assert memory.tasks == rest.tasks
    if rest.tasks:
        assert_same_pull(model, memory.penalty(), rest.penalty())
    else:
        assert memory.penalty().item() == 0.0


def test_a_task_consolidated_within_without_pulls_only_after_it():
    model = make_model()
    memory = EWC(model, strength=3.0, keep_tasks=True)
    learn(memory, model, "A", 1)
    b = learn(memory, model, "B", 2)
    with memory.without("A"):
        a = learn(memory, model, "A", 3)
        move(model, 4)
        assert_same_pull(model, memory.penalty(), equation_3(model, [b], 3.0))
    assert_same_pull(model, memory.penalty(), equation_3(model, [b, a], 3.0))
    assert memory.tasks == ("B", "A")


def test_the_well_comes_back_after_an_exception_within_without():
    model = make_model()
    memory = EWC(model, strength=3.0, keep_tasks=True)
    learn(memory, model, "A", 1)
    move(model, 2)
    before = memory.penalty()
    with pytest.raises(KeyboardInterrupt), memory.without("A"):
        raise KeyboardInterrupt
    assert torch.equal(memory.penalty(), before)


def test_without_and_forget_need_kept_tasks_and_known_names():
    model = make_model()
    with pytest.raises(RuntimeError, match="keep_tasks=True"):
        EWC(model, strength=1.0).forget("A")
    memory = EWC(model, strength=1.0, keep_tasks=True)
    memory.anchor(1.0, task="A")
    with pytest.raises(ValueError, match=r"\['A'\], got 'B'"):
        memory.forget("B")
    with pytest.raises(ValueError, match=r"\['A'\], got 'B'"), memory.without("A", "B"):
        pass
