"""Recorded visits depend on their name alone, and are played once."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import recorded_frames
from benchmarks.recorded_frames import RecordedFrames, RedrawingPlayer, record, trained_player
from ewc_paper.cli import main


def recorded(seed: int, redraw: float) -> np.ndarray:
    return record(RedrawingPlayer("Pong", seed, redraw), 12)


def test_a_visit_is_repeated_by_its_seed_and_shows_the_copies_in_turn() -> None:
    frames = recorded(0, 1.0)
    assert frames.shape == (12, 42, 42)
    assert np.array_equal(frames, recorded(0, 1.0))
    assert not np.array_equal(frames, recorded(1, 1.0))
    assert not np.array_equal(frames, recorded(0, 0.05))


def test_a_visit_is_played_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = RecordedFrames(tmp_path, "persistent")
    first = frames.visit("Pong", 0, 16)
    assert first.shape == (4, 42, 42)
    monkeypatch.delattr(recorded_frames, "record")
    assert np.array_equal(frames.visit("Pong", 0, 16), first)
    assert [file.name for file in tmp_path.rglob("*.npy")] == ["Pong-16-0.npy"]


def test_a_trained_network_plays_its_game(tmp_path: Path) -> None:
    tiny = "--segment-steps 200 --visits 1 --max-episode-steps 40 --test-episodes 1 --seeds 1"
    run = f"run games --preset atari-small --games Pong Boxing --arms single {tiny} --workers 1"
    small = "--table-episodes 1 --network small --min-history 64 --average-span 0 --n-step 1"
    assert main([*run.split(), *small.split(), "--out", str(tmp_path / "run")]) == 0
    player = trained_player("Pong", 0, tmp_path / "run")
    assert player.agent is not None
    values = player.agent.action_values(torch.from_numpy(player.game.states))
    greedy = player.agent.act(player.game.states, 0.0, np.random.default_rng(0))
    assert np.array_equal(greedy, values.argmax(1).numpy())
    frames = RecordedFrames(tmp_path / "frames", "trained", tmp_path / "run")
    assert frames.visit("Pong", 0, 16).shape == (4, 42, 42)


def test_a_trained_player_needs_networks() -> None:
    with pytest.raises(ValueError, match="expected a network trained on frames of 42x42, got None"):
        trained_player("Pong", 0, None)
