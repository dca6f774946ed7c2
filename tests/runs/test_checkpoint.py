"""A checkpoint comes back as it was, damage is noticed, and a failed write costs nothing."""

import errno
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ewc.runs import checkpoint
from ewc.runs.checkpoint import CURRENT, NEW, PREVIOUS, load_checkpoint, save_checkpoint
from ewc.runs.errors import RunError

STATE = {
    "task": 3,
    "lowest": math.inf,
    "third": 1 / 3,
    "nothing": None,
    "model": {"0.weight": torch.randn(3, 4), "0.bias": torch.randn(3).bfloat16()},
    "optimizer": {"0": {"step": torch.tensor(7.0), "momentum_buffer": torch.randn(3, 4).T}},
    "empty": {},
}


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(v, second[k]) for k, v in first.items())
    return bool(first == second)


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, STATE)
    assert same(load_checkpoint(tmp_path), STATE)


@given(data=st.data())
def test_a_file_cut_short_or_altered_gives_way_to_the_previous_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("run")
    save_checkpoint(directory, {**STATE, "task": 1})
    save_checkpoint(directory, {**STATE, "task": 2})
    content = bytearray((directory / CURRENT).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    (directory / CURRENT).write_bytes(content)
    loaded = load_checkpoint(directory)
    assert loaded is not None
    # A byte of the header that means nothing (white space) may change without harm.
    assert same(loaded, {**STATE, "task": 1}) or same(loaded, {**STATE, "task": 2})


def test_an_altered_weight_is_noticed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {**STATE, "task": 1})
    save_checkpoint(tmp_path, {**STATE, "task": 2})
    content = bytearray((tmp_path / CURRENT).read_bytes())
    content[-1] ^= 1
    (tmp_path / CURRENT).write_bytes(content)
    assert same(load_checkpoint(tmp_path), {**STATE, "task": 1})
    (tmp_path / PREVIOUS).write_bytes(b"")
    with pytest.raises(RunError, match=r"every checkpoint .* is damaged"):
        load_checkpoint(tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, STATE)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(RunError, match=r"No space left on device.*intact.*--resume"):
        save_checkpoint(tmp_path, {**STATE, "task": 4})
    assert same(load_checkpoint(tmp_path), STATE)
    assert not (tmp_path / NEW).exists()
