"""The part that all callbacks share: options are checked early, pulls come and go."""

import pytest
import torch
from torch import nn

from ewc import EWC, EWCWarning
from ewc.integrations.trainer_memory import TrainerMemory

BATCHES = [torch.randn(8, 4, generator=torch.Generator().manual_seed(0))]


@pytest.fixture
def memory() -> EWC:
    torch.manual_seed(0)
    return EWC(nn.Linear(4, 3), strength=1.0)


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


def test_the_same_name_twice_leaves_nothing_attached(memory: EWC) -> None:
    one, other = (TrainerMemory(memory, "proximal", False, name="A") for _ in range(2))
    last = TrainerMemory(memory, "proximal", False, name="B v1.0")
    last.check_name([one, last])
    optimizer = optimizer_of(memory)
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


def test_a_run_that_broke_off_is_started_again(memory: EWC) -> None:
    inside = TrainerMemory(memory, "proximal", False)
    optimizer = optimizer_of(memory)
    inside.start([optimizer])
    inside.start([optimizer])
    assert len(optimizer._optimizer_step_post_hooks) == 1
    inside.stop()
    assert not optimizer._optimizer_step_post_hooks


def test_a_start_that_fails_leaves_nothing_attached(memory: EWC) -> None:
    inside = TrainerMemory(memory, "proximal", False)
    weight, bias = memory._parameters.model.parameters()
    known, unknown = torch.optim.SGD([weight], lr=0.1), torch.optim.LBFGS([bias])
    with pytest.raises(ValueError, match="how='proximal' knows"):
        inside.start([known, unknown])
    inside.start([known])  # would be refused if it were still attached
    inside.stop()


def test_optimizers_of_other_parameters_are_left_alone(memory: EWC) -> None:
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    own = optimizer_of(memory)
    TrainerMemory(memory, "proximal", False).start([other, own])
    assert own._optimizer_step_post_hooks
    assert not other._optimizer_step_post_hooks
    with pytest.raises(ValueError, match="was the model made anew"):
        TrainerMemory(memory, "proximal", False).start([other])


def test_resuming_without_a_memory(memory: EWC) -> None:
    with pytest.raises(RuntimeError, match="lost, and the memory given has no task"):
        TrainerMemory(memory, "proximal", False).check_resumed("lost")
    with pytest.warns(EWCWarning, match=r"lost: .* with the tasks \[\]"):
        TrainerMemory(memory, "proximal", True).check_resumed("lost")
    memory.anchor(1.0, task="A")
    with pytest.warns(EWCWarning, match=r"lost: .* with the tasks \['A'\]"):
        TrainerMemory(memory, "proximal", False).check_resumed("lost")
