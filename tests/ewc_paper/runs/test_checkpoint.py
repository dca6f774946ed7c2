"""A checkpoint comes back as it was, damage is noticed, and a failed write costs nothing."""

import builtins
import errno
import itertools
import math
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ewc_paper.errors import RunError
from ewc_paper.runs import checkpoint, files
from ewc_paper.runs.checkpoint import CURRENT, NEW, PREVIOUS, load_checkpoint, save_checkpoint

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


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def two_saves(directory: Path) -> None:
    save_checkpoint(directory, {**STATE, "task": 1})
    save_checkpoint(directory, {**STATE, "task": 2})


def damaged_current(directory: Path) -> None:
    two_saves(directory)
    damage(directory / CURRENT)


def damaged_previous(directory: Path) -> None:
    two_saves(directory)
    damage(directory / PREVIOUS)


def only_new(directory: Path) -> None:
    two_saves(directory)
    os.replace(directory / CURRENT, directory / NEW)
    damage(directory / PREVIOUS)


def half_of_new(directory: Path) -> None:
    damaged_current(directory)
    (directory / NEW).write_bytes((directory / PREVIOUS).read_bytes()[:-100])


def exit_at(point: int) -> None:
    """End this process, as a kill does, just before the n-th change of a file in a save."""
    left = itertools.count(point - 1, -1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(left) == 0:
                os._exit(9)
            return function(*arguments, **options)

        return call

    class HalfWritten:
        """A file whose writes are two: the process may end in between."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> "HalfWritten":
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, content: bytes) -> None:
            half = len(content) // 2
            for piece in (content[:half], content[half:]):
                counted(self.file.write)(piece)
                self.file.flush()

    def opened(*arguments: Any) -> HalfWritten:
        return HalfWritten(counted(builtins.open)(*arguments))

    files.open = opened  # type: ignore[attr-defined]
    for name in ("replace", "fsync", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


def save_and_exit(directory: Path, task: int, point: int) -> None:
    exit_at(point)
    save_checkpoint(directory, {**STATE, "task": task})


def killed_save(directory: Path, task: int, point: int) -> bool:
    """Whether a save was killed at that point: it may end before."""
    arguments = (directory, task, point)
    child = multiprocessing.get_context("fork").Process(target=save_and_exit, args=arguments)
    child.start()
    child.join()
    assert child.exitcode in (0, 9)
    return child.exitcode == 9


@pytest.mark.parametrize(
    "start", [two_saves, damaged_current, damaged_previous, only_new, half_of_new]
)
def test_killed_at_every_point_of_a_save_the_good_checkpoint_is_there(
    tmp_path: Path, start: Callable[[Path], Any]
) -> None:
    for point in itertools.count(1):
        place = tmp_path / str(point)
        place.mkdir()
        start(place)
        before = load_checkpoint(place)
        assert before is not None
        if not killed_save(place, 3, point):
            break
        found = load_checkpoint(place)
        assert found is not None
        assert found["task"] in (before["task"], 3)
        save_checkpoint(place, {**STATE, "task": 4})
        assert same(load_checkpoint(place), {**STATE, "task": 4})
    assert point > 7, "a save changes files more often than that"


@pytest.mark.parametrize("first", range(1, 8))
def test_killed_in_two_saves_the_good_checkpoint_is_there(tmp_path: Path, first: int) -> None:
    for second in itertools.count(1):
        place = tmp_path / str(second)
        place.mkdir()
        damaged_current(place)
        assert killed_save(place, 3, first)
        if not killed_save(place, 4, second):
            break
        found = load_checkpoint(place)
        assert found is not None
        assert found["task"] in (1, 3, 4)
