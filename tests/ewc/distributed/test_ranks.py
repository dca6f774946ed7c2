"""Several processes share a Fisher and a memory, or say why they do not.

The ranks of `four_ranks` run `support.ranks`, each with its own part of the samples.
"""

import copy
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.fisher import EXACT, assert_equal_fishers, batch_of_one_fisher
from support.ranks import (
    assert_same_learning,
    learn_two_tasks,
    make_model,
    make_task,
    sequence_model,
    sequences,
)
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import ewc
from ewc.checkpoint import load_checkpoint
from ewc.distributed.ranks import RankChoice, Ranks, choose_ranks, find_ranks

TASKS, CALLS = "data_parallel.two_tasks", "data_parallel.other_calls"


@pytest.mark.parametrize("name", ["sgd", "adamw", "budget"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_learn_what_one_process_learns(four_ranks, name, size):
    results = [result[f"{name} {size}"] for result in four_ranks.of(TASKS)[:size]]
    assert_same_learning(results, learn_two_tasks(make_model(), name))


def test_a_fisher_of_parts_is_that_of_all_samples(four_ranks):
    inputs, _ = make_task(1)
    expected = batch_of_one_fisher(make_model(), (inputs,), None, EXACT["categorical"])
    for result in four_ranks.of(CALLS):
        assert_equal_fishers(result["world"], expected)
        assert_equal_fishers(result["local"], expected)


def test_a_plain_model_in_several_processes_needs_a_choice(four_ranks):
    for result in four_ranks.of(CALLS):
        assert "ValueError: 4 ranks run here" in result["plain"]
        assert "expected process_group to be a group" in result["unknown"]


def test_an_error_in_one_rank_is_an_error_in_all_and_changes_nothing(four_ranks):
    for rank, result in enumerate(four_ranks.of(CALLS)):
        cause = "ValueError: every tensor of a batch must have the samples first"
        start = cause if rank == 2 else "OtherRankError: rank 2 failed"
        assert result["broken"].startswith(start)
        assert cause in result["broken"]
        assert result["tasks"] == []


def test_no_samples_at_all_are_refused_by_all(four_ranks):
    assert all("batches is empty" in result["empty"] for result in four_ranks.of(CALLS))


def test_different_weights_are_refused_by_all(four_ranks):
    for result in four_ranks.of(CALLS):
        assert "expected the same weights in all ranks, but '0.weight'" in result["different"]


def test_equal_seeds_give_different_labels_in_each_rank(four_ranks):
    assert len({result["draw"] for result in four_ranks.of(CALLS)}) == 4


def test_max_samples_counts_the_samples_of_all_ranks(four_ranks):
    shares = [result["share"] for result in four_ranks.of(CALLS)]
    assert shares == [3, 3, 2, 2]
    inputs, _ = make_task(1)  # of which the ranks 0 and 1 take the first, and the others none
    expected = ewc.fisher_diagonal(make_model(), [inputs[:1]])
    for result in four_ranks.of(CALLS):
        assert_equal_fishers(result["few"], expected)


def test_a_memory_of_a_wrapped_model_loads_into_the_bare_one(four_ranks):
    memory = ewc.EWC(make_model(), strength=1.0)
    memory.load_state_dict(four_ranks.of(CALLS)[0]["bare"])
    assert memory.tasks == ("after the error",)
    assert four_ranks.of(CALLS)[0]["bare"].keys() == memory.state_dict().keys()


def test_one_process_is_alone():
    ranks = Ranks()
    generator = torch.Generator()
    assert (ranks.size, ranks.rank) == (1, 0)
    assert (ranks.share(5), ranks.share(None)) == (5, None)
    assert ranks.exchange("it") == ["it"]
    assert ranks.own_generator(generator) is generator
    assert find_ranks(nn.Linear(2, 2), "world").size == 1


def test_an_error_of_the_only_process_is_its_own():
    with pytest.raises(KeyError, match="mine"), Ranks().failing_together():
        raise KeyError("mine")


def test_a_choice_survives_a_copy_but_a_group_is_not_pickled():
    group = object()
    assert copy.deepcopy(RankChoice(group)).group is group
    assert pickle.loads(pickle.dumps(RankChoice("local"))).group == "local"
    assert pickle.loads(pickle.dumps(RankChoice(group))).group is None
    assert choose_ranks(nn.Linear(2, 2), None).group is None


def test_tensor_parallelism_is_refused(one_rank):
    mesh = DeviceMesh("cpu", [[0]], mesh_dim_names=("rows", "columns"))
    model = nn.Linear(4, 3, bias=False)
    model.weight = nn.Parameter(distribute_tensor(model.weight.data, mesh, [Shard(0), Shard(1)]))
    with pytest.raises(ValueError, match="tensor parallelism"):
        ewc.fisher_diagonal(model, [torch.randn(2, 4)])


def test_a_memory_of_a_wrapped_model_can_be_copied(one_rank):
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    memory = ewc.EWC(model, strength=1.0)
    copied = copy.deepcopy(memory)
    copied.consolidate([torch.randn(2, 4)], task="A")
    assert (memory.tasks, copied.tasks) == ((), ("A",))


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


SHARDED_CALLS = "sharded.other_calls"


def test_ranks_with_sequences_of_different_lengths_take_as_many_turns(four_ranks):
    batches = [batch for batches in sequences() for batch in batches]
    expected = ewc.fisher_diagonal(sequence_model(), batches, parameters="!2.bias")
    assert "1.bias" not in expected  # it is frozen
    for result in four_ranks.of("sharded.fisher_of_sequences")[:2]:
        assert_equal_fishers(result, expected)


def test_an_error_in_one_rank_of_a_sharded_model_is_an_error_in_all(four_ranks):
    for rank, result in enumerate(four_ranks.of(SHARDED_CALLS)):
        other = "OtherRankError: rank 2 failed"
        assert result["broken"].startswith("ValueError: every tensor" if rank == 2 else other)
        assert result["bad label"].startswith("ValueError: labels must" if rank == 2 else other)
        assert result["tasks"] == []


def test_the_model_is_left_as_it_was(four_ranks):
    for result in four_ranks.of(SHARDED_CALLS):
        assert result["keeps gradients"]
        assert result["is sharded"]
        assert result["mode"] is True


def test_no_more_layers_are_gathered_than_in_training(four_ranks):
    # One, and beside it in forward the last one, which belongs to the root, or in backward the
    # next, which FSDP fetches ahead.
    assert four_ranks.of("sharded.most_gathered") == [2, 2, 2, 2]
