"""Networks are trained on a GPU if there is one; what is restored is moved there."""

import pytest
import torch

from ewc_paper.device import on_device, training_device


@pytest.mark.parametrize(("available", "device"), [(True, "cuda"), (False, "cpu")])
def test_a_gpu_is_used_if_there_is_one(
    available: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert training_device() == torch.device(device)


def test_all_tensors_of_a_state_are_moved_and_nothing_else_changes() -> None:
    state = {"step": 3, "model": {"weight": torch.ones(2), "names": ["a"]}}
    moved = on_device(state, torch.device("meta"))
    assert moved["model"]["weight"].device.type == "meta"
    assert state["model"]["weight"].device.type == "cpu"
    assert (moved["step"], moved["model"]["names"]) == (3, ["a"])
