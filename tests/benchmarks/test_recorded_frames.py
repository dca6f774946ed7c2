"""Recorded visits depend on their name alone, and are played once."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import recorded_frames
from benchmarks.recorded_frames import RecordedFrames, record


def test_a_visit_is_repeated_by_its_seed_and_shows_the_copies_in_turn() -> None:
    frames = record("Pong", 12, 1.0, seed=0)
    assert frames.shape == (12, 42, 42)
    assert np.array_equal(frames, record("Pong", 12, 1.0, seed=0))
    assert not np.array_equal(frames, record("Pong", 12, 1.0, seed=1))
    assert not np.array_equal(frames, record("Pong", 12, 0.05, seed=0))


def test_a_visit_is_played_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = RecordedFrames(tmp_path, "persistent")
    first = frames.visit("Pong", 0, 16)
    assert first.shape == (4, 42, 42)
    monkeypatch.delattr(recorded_frames, "record")
    assert np.array_equal(frames.visit("Pong", 0, 16), first)
    assert [file.name for file in tmp_path.rglob("*.npy")] == ["Pong-16-0.npy"]
