"""A sharded model learns what a whole one does, and its parameters and memory stay sharded.

The ranks of `four_ranks` run `support.sharded`, each with its own part of the samples.
"""

import pytest
import torch
from support.rank_tasks import assert_same_learning, learn_two_tasks, make_model, make_task
from support.reference import assert_equal_fishers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.functional import cross_entropy

import ewc
from ewc.sharding import (
    all_true,
    any_nonzero,
    assembled,
    elementwise,
    laid_out_like,
    largest,
    mean,
    refuse_fsdp1,
    same_layout,
    shard,
    shard_values,
    sums_of_shards,
    total,
    whole,
)

TASKS, CALLS = "sharded.two_tasks", "sharded.other_calls"


@pytest.mark.parametrize("run", ["sgd 2", "gradient 2", "adamw 4", "budget 4"])
def test_sharded_models_learn_what_one_process_learns(four_ranks, run):
    name, size = run.split()
    results = [result[run] for result in four_ranks.of(TASKS)[: int(size)]]
    assert_same_learning(results, learn_two_tasks(make_model(), name))


def test_the_penalty_has_its_gradient_in_every_shard(four_ranks):
    inputs, labels = make_task(1)
    model = make_model()
    memory = ewc.EWC(model, strength=3.0)
    memory.consolidate([inputs])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    (cross_entropy(model(inputs), labels) + memory.penalty()).backward()
    for result in four_ranks.of(CALLS):
        for name, p in model.named_parameters():
            torch.testing.assert_close(result["gradients"][name], p.grad)


def test_shards_and_replicas_together_are_averaged_too(four_ranks):
    model = make_model()
    memory = ewc.EWC(model, strength=1.0)
    expected = memory.consolidate([make_task(1)], normalize=2.0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    for result in four_ranks.of("sharded.fisher_with_replicas"):
        assert_equal_fishers(result["fisher"], expected)
        assert result["penalty"] == pytest.approx(float(memory.penalty().detach()))


def test_numbers_are_those_of_the_whole(four_ranks):
    overlaps = {result["overlap"] for result in four_ranks.of(CALLS)}
    assert len(overlaps) == 1
    assert overlaps.pop() == pytest.approx(four_ranks.of(CALLS)[0]["overlap of the whole"])


def test_what_does_not_go_with_shards_is_refused(four_ranks):
    for result in four_ranks.of(CALLS):
        assert "expected process_group=None for a model that is sharded" in result["local"]
        assert "noise cannot be added to sharded parameters" in result["noise"]
        assert "only shards of the memory: save it with torch.distributed" in result["file"]


def test_fsdp1_is_refused_and_its_model_works_as_before(four_ranks):
    for result in four_ranks.of("sharded.fsdp1"):
        for name in ("new", "fisher", "made before"):
            assert result[name].startswith("TypeError: FullyShardedDataParallel (FSDP1)")
            assert "fully_shard (FSDP2)" in result[name]
        assert result["works"]


def test_a_plain_model_is_not_taken_for_fsdp1():
    refuse_fsdp1(nn.Linear(2, 2))


@pytest.fixture
def tensor(one_rank):
    """A sharded tensor in one process, which has all of it."""
    mesh = DeviceMesh("cpu", [0])
    return distribute_tensor(torch.tensor([1.0, 0.0, 3.0]), mesh, [Shard(0)])


def test_a_shard_shares_memory_and_gradient(tensor):
    parameter = nn.Parameter(tensor)
    parameter.grad = 2 * tensor
    local = shard(parameter)
    assert not isinstance(local, DTensor)
    assert torch.equal(local.grad, torch.tensor([2.0, 0.0, 6.0]))
    local.mul_(2)
    assert torch.equal(whole(parameter.detach()), torch.tensor([2.0, 0.0, 6.0]))


def test_numbers_of_a_sharded_tensor(tensor):
    assert float(total(tensor)) == 4
    assert float(mean(tensor)) == pytest.approx(4 / 3)
    assert largest(tensor) == 3
    assert any_nonzero(tensor)
    assert not any_nonzero(elementwise(torch.zeros_like, tensor))
    assert not all_true(tensor > 0)
    assert all_true(tensor >= 0)


def test_the_largest_of_no_entries_is_zero():
    assert largest(torch.zeros(0, 3)) == 0


def test_results_have_the_layout_of_the_tensor(tensor):
    doubled = elementwise(lambda values: 2 * values, tensor)
    assert same_layout(doubled, tensor)
    assert torch.equal(whole(doubled), torch.tensor([2.0, 0.0, 6.0]))
    assert same_layout(assembled(torch.ones(3), tensor), tensor)


def test_layouts_follow_the_parameter_both_ways(tensor):
    plain = torch.tensor([4.0, 5.0, 6.0])
    assert not same_layout(plain, tensor)
    assert torch.equal(whole(laid_out_like(plain, tensor)), plain)
    assert same_layout(laid_out_like(plain, tensor), tensor)
    assert torch.equal(laid_out_like(tensor, plain), torch.tensor([1.0, 0.0, 3.0]))


def test_sums_keep_plain_values_apart(tensor):
    values = [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(4.0)]
    assert sorted(map(float, sums_of_shards(values, [tensor, values[1], tensor]))) == [2.0, 5.0]


def test_the_state_of_an_optimizer_is_sharded_with_its_parameter(tensor):
    state = {"exp_avg": tensor, "step": torch.tensor(3.0)}
    local = shard_values(state)
    assert not isinstance(local["exp_avg"], DTensor)
    assert local["step"] is state["step"]
    plain = {"step": torch.tensor(3.0)}
    assert shard_values(plain) is plain


def test_plain_tensors_pass_through():
    plain = torch.tensor([1.0, 2.0])
    assert shard(plain) is whole(plain) is assembled(plain, plain) is plain
    assert float(total(plain)) == 3
    assert largest(plain) == 2
