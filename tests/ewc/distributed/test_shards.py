"""A sharded model learns what a whole one does, and its parameters and memory stay sharded.

The ranks of `four_ranks` run `support.ranks`, each with its own part of the samples.
"""

import pytest
import torch
from support.fisher import assert_equal_fishers
from support.ranks import assert_same_learning, learn_two_tasks, make_model, make_task
from torch import nn
from torch.nn.functional import cross_entropy

import ewc
from ewc.distributed.shards import (
    refuse_fsdp1,
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


class DeepSpeedEngine(nn.Module):
    """Stands in for DeepSpeed's, which has the user's module inside."""

    __module__ = "deepspeed.runtime.engine"

    def __init__(self, module):
        super().__init__()
        self.module = module


class DeepSpeedZeroOptimizer:
    """Stands in for that of stages 1 to 3, which has the user's optimizer inside."""

    __module__ = "deepspeed.runtime.zero.stage_1_and_2"

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


class DeepSpeedOptimizerWrapper(DeepSpeedZeroOptimizer):
    """Stands in for that of Accelerate."""

    __module__ = "accelerate.utils.deepspeed"


def zero(model, optimizer, stage):
    """Do what DeepSpeed's stages do to the parameters of a model and of its optimizer."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).requires_grad_()
    optimizer.param_groups[0]["params"] = [flat]
    for n, parameter in enumerate(model.parameters()):
        if stage < 3:
            parameter._hp_mapping = None
        else:
            parameter.ds_id, parameter.data = n, torch.empty(0)


def test_an_engine_of_deepspeed_is_refused():
    engine = DeepSpeedEngine(nn.Linear(2, 2))
    for use in (ewc.EWC, lambda model: ewc.fisher_diagonal(model, [torch.ones(1, 2)])):
        with pytest.raises(TypeError, match=r"DeepSpeed \(ZeRO\).*DistributedDataParallel.*FSDP2"):
            use(engine)


@pytest.mark.parametrize("wrapper", [DeepSpeedZeroOptimizer, DeepSpeedOptimizerWrapper])
def test_an_optimizer_of_deepspeed_is_refused(wrapper):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"DeepSpeed \(ZeRO\)"):
        ewc.EWC(model, strength=1.0).attach(wrapper(optimizer))
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_that_zero_has_taken_over_are_refused(stage):
    model = nn.Linear(2, 2)
    memory = ewc.EWC(model, strength=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    zero(model, optimizer, stage)
    uses = (
        lambda: ewc.EWC(model),
        lambda: ewc.fisher_diagonal(model, [torch.ones(1, 2)]),
        lambda: memory.consolidate([torch.ones(1, 2)]),
        lambda: memory.attach(optimizer),
    )
    for use in uses:
        with pytest.raises(TypeError, match=r"DeepSpeed \(ZeRO\)"):
            use()
    assert not memory.tasks


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_that_comes_after_attach_is_refused_at_the_first_step(stage):
    model = nn.Linear(2, 2)
    memory = ewc.EWC(model, strength=1.0)
    memory.anchor(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer)
    zero(model, optimizer, stage)
    with pytest.raises(TypeError, match=r"DeepSpeed \(ZeRO\)"):
        optimizer.step()
