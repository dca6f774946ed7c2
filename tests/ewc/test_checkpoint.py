"""A checkpoint of 4 processes loads into 2 and into 1, and is refused where it does not fit."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.rank_tasks import make_model
from torch import nn

import ewc
from ewc.checkpoint import load_checkpoint

SAVED = "sharded.saved_and_loaded"


def assert_equal_states(state, expected):
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_four_ranks_save_and_two_load(four_ranks):
    for result in four_ranks.of(SAVED)[:2]:
        assert_equal_states(result["loaded"], result["saved"])
        assert result["stays sharded"]


def test_whole_tensors_load_into_a_sharded_model(four_ranks):
    for result in four_ranks.of(SAVED)[:2]:
        assert_equal_states(result["loaded from whole tensors"], result["saved"])


def test_one_process_loads_what_four_saved(four_ranks):
    memory = ewc.EWC(make_model(), strength=1.0, keep_tasks=True)
    load_checkpoint(memory, four_ranks.folder / "checkpoint")
    assert_equal_states(memory.state_dict(), four_ranks.of(SAVED)[0]["saved"])
    assert (memory.strength, memory.tasks) == (5.0, ("A", "B"))


def test_a_checkpoint_without_a_memory_is_refused(tmp_path):
    model = nn.Linear(4, 3)
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path)
    with pytest.raises(ValueError, match=r"memory under the key 'memory'.*\['model'\]"):
        load_checkpoint(ewc.EWC(model, strength=1.0), tmp_path)


def test_a_checkpoint_of_another_architecture_changes_nothing(tmp_path):
    saved = ewc.EWC(nn.Linear(4, 3), strength=2.0)
    saved.anchor(1.0)
    dcp.save({"memory": saved.state_dict()}, checkpoint_id=tmp_path)
    memory = ewc.EWC(nn.Linear(5, 3), strength=1.0)
    with pytest.raises(ValueError, match="another architecture"):
        load_checkpoint(memory, tmp_path)
    assert (memory.strength, memory.tasks) == (1.0, ())
