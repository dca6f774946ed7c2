"""`EWC.save` and `EWC.load`: a memory that goes on where it was."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ewc import EWC


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.mark.parametrize("keep_tasks", [False, True, "cpu"])
def test_a_loaded_memory_is_the_one_that_was_saved(
    model: nn.Module, keep_tasks: bool | str, tmp_path: Path
) -> None:
    memory = EWC(model, strength=7.0, decay=0.5, keep_tasks=keep_tasks)
    for task in "AB":
        memory.anchor(torch.rand(1).item(), task=task)
        with torch.no_grad():
            model.weight += 0.1
    memory.save(tmp_path / "memory.safetensors")
    loaded = EWC.load(tmp_path / "memory.safetensors", model)
    assert repr(loaded) == repr(memory) == "EWC(strength=7.0, decay=0.5, tasks=['A', 'B'])"
    state = loaded.state_dict()
    assert state.keys() == memory.state_dict().keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in memory.state_dict().items())


def test_where_tasks_are_kept_may_be_chosen(model: nn.Module, tmp_path: Path) -> None:
    memory = EWC(model, strength=7.0, keep_tasks=True)
    memory.anchor(1.0, task="A")
    memory.save(tmp_path / "file")
    loaded = EWC.load(tmp_path / "file", model, keep_tasks="cpu")
    assert loaded._wells.storage == torch.device("cpu")
    with pytest.raises(ValueError, match="keep_tasks=True"):
        EWC.load(tmp_path / "file", model, keep_tasks=False)


def test_the_file_must_be_among_the_selected(model: nn.Module, tmp_path: Path) -> None:
    memory = EWC(model, strength=7.0, parameters="weight")
    memory.anchor(1.0)
    memory.save(tmp_path / "file")
    loaded = EWC.load(tmp_path / "file", model, parameters="weight")
    assert list(loaded.consolidate([torch.randn(8, 4)])) == ["weight"]
    with pytest.raises(ValueError, match="which is not selected"):
        EWC.load(tmp_path / "file", model, parameters="bias")


def test_no_memory_is_an_error(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected a file of an EWC memory"):
        EWC.load(tmp_path / "nowhere", model)
