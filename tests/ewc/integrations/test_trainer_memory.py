"""The part that all callbacks share: options are checked early, pulls come and go."""

import re
from typing import Any

import pytest
import torch
from support.ranks import make_model, make_task
from support.trainers import small_net, with_lora
from torch import nn

from ewc import EWC, EWCWarning
from ewc.integrations.peft import LoraEWC
from ewc.integrations.trainer_memory import TrainerMemory, fitting_kind

BATCHES = [torch.randn(8, 4, generator=torch.Generator().manual_seed(0))]


@pytest.fixture
def memory() -> EWC:
    torch.manual_seed(0)
    return EWC(nn.Linear(4, 3), strength=1.0)


@pytest.fixture
def full(memory: EWC) -> EWC:
    """A memory with a task, so that a training with it is not told to be a plain one."""
    memory.anchor(1.0, task="before")
    return memory


def optimizer_of(memory: EWC) -> torch.optim.SGD:
    return torch.optim.SGD(memory._parameters.model.parameters(), lr=0.1)


def test_a_memory_is_expected() -> None:
    with pytest.raises(TypeError, match=r"expected an ewc\.EWC as the memory, got Linear"):
        TrainerMemory(nn.Linear(4, 3), "proximal", False)  # type: ignore[arg-type]


def test_unknown_options_are_refused_at_once(memory: EWC) -> None:
    with pytest.raises(ValueError, match=r"options of memory\.consolidate\(\) .* got 'sample'"):
        TrainerMemory(memory, "proximal", {"sample": 3})


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "a:b", "a\0"])
def test_a_name_that_cannot_be_a_files_is_refused(memory: EWC, name: str) -> None:
    with pytest.raises(ValueError, match="expected a name that can be part of a file's name"):
        TrainerMemory(memory, "proximal", False, name=name)


def test_the_same_name_twice_leaves_nothing_attached(full: EWC) -> None:
    one, other = (TrainerMemory(full, "proximal", False, name="A") for _ in range(2))
    last = TrainerMemory(full, "proximal", False, name="B v1.0")
    last.check_name([one, last])
    optimizer = optimizer_of(full)
    one.start([optimizer])
    with pytest.raises(ValueError, match=r"got 'A' twice: .* EWCCallback\(memory, name=\.\.\.\)"):
        other.check_name([one, last, other])
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("consolidate", "tasks"), [(False, ()), (True, ("task 1",)), ({"task": "A"}, ("A",))]
)
def test_it_consolidates_if_asked(memory: EWC, consolidate: object, tasks: tuple[str]) -> None:
    inside = TrainerMemory(memory, "proximal", consolidate)  # type: ignore[arg-type]
    inside.finish(BATCHES)
    assert memory.tasks == tasks


def test_a_run_that_broke_off_is_started_again(full: EWC) -> None:
    inside = TrainerMemory(full, "proximal", False)
    optimizer = optimizer_of(full)
    inside.start([optimizer])
    inside.start([optimizer])
    assert len(optimizer._optimizer_step_post_hooks) == 1
    inside.stop()
    assert not optimizer._optimizer_step_post_hooks


def test_a_start_that_fails_leaves_nothing_attached(full: EWC) -> None:
    inside = TrainerMemory(full, "proximal", False)
    weight, bias = full._parameters.model.parameters()
    known, unknown = torch.optim.SGD([weight], lr=0.1), torch.optim.LBFGS([bias])
    with pytest.raises(ValueError, match="how='proximal' knows"):
        inside.start([known, unknown])
    inside.start([known])  # would be refused if it were still attached
    inside.stop()


def test_optimizers_of_other_parameters_are_left_alone(full: EWC) -> None:
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    own = optimizer_of(full)
    TrainerMemory(full, "proximal", False).start([other, own])
    assert own._optimizer_step_post_hooks
    assert not other._optimizer_step_post_hooks
    with pytest.raises(ValueError, match="was the model made anew"):
        TrainerMemory(full, "proximal", False).start([other])


def test_resuming_without_a_memory(memory: EWC) -> None:
    with pytest.raises(RuntimeError, match="lost, and the memory given has no task"):
        TrainerMemory(memory, "proximal", False).check_resumed("lost")
    with pytest.warns(EWCWarning, match=r"lost: .* with the tasks \[\]"):
        TrainerMemory(memory, "proximal", True).check_resumed("lost")
    memory.anchor(1.0, task="A")
    with pytest.warns(EWCWarning, match=r"lost: .* with the tasks \['A'\]"):
        TrainerMemory(memory, "proximal", False).check_resumed("lost")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "emprical"}, "did you mean 'empirical'"),
        ({"likelihood": "poisson"}, "likelihood must be one of"),
        ({"positions": "median"}, "positions must be one of"),
        ({"floor": -1}, "floor"),
        ({"normalize": -1.0}, "normalize"),
        ({"max_samples": 0}, "max_samples must be at least 1"),
        ({"collate": list}, "has a collator: leave out the option 'collate'"),
        ({"kind": "exact", "likelihood": lambda outputs, targets: outputs}, "kind='empirical'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_options_are_refused_at_once(memory: EWC, options: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        TrainerMemory(memory, None, options)


def test_what_is_neither_options_nor_a_yes_is_refused(memory: EWC) -> None:
    with pytest.raises(TypeError, match=r"consolidate to be True, False or the options .* 'B'"):
        TrainerMemory(memory, None, "B")  # type: ignore[arg-type]


def test_an_empty_memory_is_told_at_the_start(memory: EWC) -> None:
    with pytest.warns(EWCWarning, match="has no task, so nothing pulls"):
        TrainerMemory(memory, None, False).start([optimizer_of(memory)])


@pytest.mark.parametrize(("classes", "kind"), [(2, "exact"), (1000, "exact"), (1001, "sampled")])
def test_the_kind_that_fits_a_classifier(classes: int, kind: str) -> None:
    assert fitting_kind(nn.Linear(4, classes), BATCHES) == kind


def test_the_kind_that_fits_sequences_and_likelihoods_of_the_users_own() -> None:
    assert fitting_kind(nn.Linear(4, 3), [torch.randn(5, 2, 4)]) == "sampled"
    assert fitting_kind(nn.Linear(4, 3), BATCHES, lambda outputs, targets: outputs) == "empirical"
    assert fitting_kind(nn.Linear(4, 3), []) == "sampled"


def test_a_trial_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    memory = EWC(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    inside = TrainerMemory(memory, None, True)
    inside.start([optimizer_of(memory)])
    inside.try_out(BATCHES[0])
    assert not inside.wants_a_batch
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert memory.tasks == ()


def test_a_memory_of_adapters_pulls_in_its_own_way() -> None:
    model = with_lora(small_net())
    memory = LoraEWC(model, strength=1.0)
    memory.anchor(1.0)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    TrainerMemory(memory, None, False).start([optimizer])
    assert memory._attachments[optimizer].how == "gradient"


def test_a_failure_at_the_end_is_told_with_the_call_that_is_left(memory: EWC) -> None:
    inside = TrainerMemory(memory, None, {"task": "A", "floor": 0.1})
    inside.start([optimizer_of(memory)])
    inside.try_out(BATCHES[0])
    call = re.escape("memory.consolidate(batches, task='A', floor=0.1, kind='exact')")
    with pytest.warns(
        EWCWarning, match=f"weights are kept, .*RuntimeError.* tasks \\[\\].* {call}"
    ):
        inside.finish([torch.randn(8, 5)])
    assert memory.tasks == ()


IN_A_TRAINER = "data_parallel.in_a_trainer"


def test_ranks_without_a_group_are_told_before_the_first_step(four_ranks: Any) -> None:
    for result in four_ranks.of(IN_A_TRAINER):
        assert "would fail at the end" in result["no group"]
        assert "process_group='world'" in result["no group"]
        assert not result["no group, attached"]


def test_a_first_batch_that_fails_in_one_rank_fails_in_all(four_ranks: Any) -> None:
    for result in four_ranks.of(IN_A_TRAINER):
        assert "would fail at the end" in result["broken"]
        assert not result["broken, attached"]


def test_ranks_consolidate_the_samples_of_all(four_ranks: Any) -> None:
    memory = EWC(make_model(), strength=1.0)
    memory.consolidate([make_task(1)], task="A")
    for result in four_ranks.of(IN_A_TRAINER):
        assert (result["works"], result["tasks"]) == ("", ["A"])
        for name, value in memory.state_dict().items():
            torch.testing.assert_close(result["state"][name], value)
