"""The recognizer against explicit loops over the equations, and what is promised of it."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.slow_forget_me_not import SlowForgetMeNot

import ewc
from ewc.recognition.forget_me_not import ForgetMeNot

SHAPE = (2, 6, 5)


class Worlds:
    """Tasks that are a typical frame each, of which every observation shows most pixels."""

    def __init__(self, tasks: int, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.typical = self.random.integers(0, 256, (tasks, *SHAPE), dtype=np.uint8)

    def frame(self, task: int) -> np.ndarray:
        noise = self.random.integers(0, 256, SHAPE, dtype=np.uint8)
        return np.where(self.random.random(SHAPE) < 0.2, noise, self.typical[task])


@pytest.mark.parametrize(("window", "wins"), [(1, 1), (3, 1), (4, 2), (2, 3)])
def test_it_follows_the_equations(window: int, wins: int) -> None:
    settings: dict[str, Any] = {
        "levels": 4,
        "prior": 1.0,
        "window": window,
        "wins": wins,
        "independent": 40,
    }
    fast, slow = ForgetMeNot(**settings), SlowForgetMeNot(**settings)
    worlds = Worlds(3)
    for task in (0, 1, 0, 2, 1):
        for _ in range(13):
            frame = worlds.frame(task)
            expected, posterior = slow.observe(frame)
            assert fast.observe(frame) == expected
            assert fast.posterior == pytest.approx(posterior, abs=1e-4)
    assert fast.num_tasks == len(slow.learned) - 1 >= 3


def play(recognizer: ForgetMeNot, worlds: Worlds, task: int, frames: int = 24) -> list[int]:
    return [recognizer.observe(worlds.frame(task)) for _ in range(frames)]


def test_it_is_public() -> None:
    assert ewc.ForgetMeNot is ForgetMeNot


def test_new_tasks_are_opened_and_old_ones_known_again_at_once() -> None:
    recognizer, worlds = ForgetMeNot(levels=4), Worlds(3)
    assert play(recognizer, worlds, 0) == [0] * 24
    assert [play(recognizer, worlds, task)[-1] for task in (1, 2)] == [1, 2]
    for task in (0, 2, 1):
        assert play(recognizer, worlds, task) == [task] * 24
    assert recognizer.num_tasks == 3
    assert recognizer.posterior.shape == (4,)
    assert recognizer.posterior.sum() == pytest.approx(1)


def test_a_window_is_decided_when_it_ends_with_a_winner() -> None:
    recognizer, worlds = ForgetMeNot(levels=4, prior=1.0, window=4, wins=2), Worlds(2)
    decided = []
    for task in (0, 1):
        for _ in range(12):
            recognizer.observe(worlds.frame(task))
            decided.append(recognizer.decided)
    # The held-out model wins the fourth and the fifth window; only then is it a task.
    assert [number for number, now in enumerate(decided, 1) if now] == [4, 8, 12, 20, 24]
    assert recognizer.num_tasks == 2


def test_only_the_winner_keeps_a_window() -> None:
    recognizer, worlds = ForgetMeNot(levels=4, window=4), Worlds(2)
    kept = [0, 0]
    for task in (0, 1, 0):
        for _ in range(24):
            winner = recognizer.observe(worlds.frame(task))
            kept[winner] += 4 * recognizer.decided
    state = recognizer.state_dict()
    assert state["frames"].tolist() == kept
    pixels = np.prod(SHAPE)
    assert state["counts"].sum(dim=1).tolist() == [pixels * frames for frames in kept]


def test_a_frozen_one_knows_the_tasks_and_learns_nothing() -> None:
    recognizer, worlds = ForgetMeNot(levels=4), Worlds(3)
    for task in (0, 1):
        play(recognizer, worlds, task)
    before = recognizer.state_dict()
    frozen = recognizer.frozen()
    assert frozen.posterior == pytest.approx([0.5, 0.5])
    for task in (1, 0, 1):
        assert [frozen.observe(worlds.frame(task)) for _ in range(8)] == [task] * 8
    strange = [frozen.observe(worlds.frame(2)) for _ in range(40)]
    assert set(strange) <= {0, 1}
    assert_same(recognizer.state_dict(), before)


def test_a_frozen_one_stays_as_it_is_while_the_other_learns() -> None:
    recognizer, worlds = ForgetMeNot(levels=4), Worlds(2)
    play(recognizer, worlds, 0)
    frozen, again = recognizer.frozen(), recognizer.frozen()
    frame = worlds.frame(0)
    frozen.observe(frame)
    play(recognizer, worlds, 1)
    again.observe(frame)
    assert again.posterior.tolist() == frozen.posterior.tolist() == [1.0]


@pytest.mark.parametrize("observed", [0, 1, 30, 34])
def test_it_goes_on_identically_from_a_checkpoint(observed: int, tmp_path: Path) -> None:
    first, second = ForgetMeNot(levels=4), ForgetMeNot(levels=4)
    worlds = Worlds(3)
    stream = [worlds.frame(task) for task in (0, 1, 2, 1) for _ in range(16)]
    for frame in stream[:observed]:
        first.observe(frame)
    torch.save(first.state_dict(), tmp_path / "recognizer.pt")
    second.load_state_dict(torch.load(tmp_path / "recognizer.pt", weights_only=True))
    assert second.decided == first.decided
    for frame in stream[observed:]:
        assert first.observe(frame) == second.observe(frame)
        assert first.decided == second.decided
    assert_same(first.state_dict(), second.state_dict())


def test_a_state_is_a_copy() -> None:
    recognizer, worlds = ForgetMeNot(levels=4), Worlds(2)
    play(recognizer, worlds, 0)
    state = recognizer.state_dict()
    kept = {name: value.clone() for name, value in state.items() if hasattr(value, "clone")}
    other = ForgetMeNot(levels=4)
    other.load_state_dict(state)
    play(recognizer, worlds, 1)
    play(other, worlds, 1)
    assert all(state[name].equal(value) for name, value in kept.items())


@pytest.mark.parametrize(
    ("frame", "error", "said"),
    [
        (np.zeros(SHAPE), TypeError, "expected a frame of uint8"),
        (
            np.zeros((2, 5, 6), dtype=np.uint8),
            ValueError,
            r"expected frames of shape \(2, 6, 5\) as before, got \(2, 5, 6\)",
        ),
    ],
)
def test_bad_frames_change_nothing(frame: Any, error: type[Exception], said: str) -> None:
    recognizer, worlds = ForgetMeNot(levels=4), Worlds(1)
    play(recognizer, worlds, 0, frames=5)
    before, frozen = recognizer.state_dict(), recognizer.frozen()
    for one in (recognizer, frozen):
        with pytest.raises(error, match=said):
            one.observe(frame)
    assert_same(recognizer.state_dict(), before)


def test_a_bad_first_frame_changes_nothing() -> None:
    recognizer = ForgetMeNot()
    with pytest.raises(ValueError, match="height, width"):
        recognizer.observe(np.zeros(4, dtype=np.uint8))
    assert recognizer.state_dict()["shape"] is None


def test_a_first_frame_that_does_not_fit_in_memory_changes_nothing() -> None:
    recognizer, worlds = ForgetMeNot(levels=4), Worlds(1)
    with pytest.raises(MemoryError):
        recognizer.observe(np.broadcast_to(np.uint8(0), (2**40, 42, 42)))
    assert play(recognizer, worlds, 0, frames=5) == [0] * 5


@pytest.mark.parametrize(
    "shape", [(2, 200), (1, 100), (200, 2), (1, 1), (3, 2, 200), (84, 84, 3), (84, 84, 1)]
)
def test_frames_of_any_shape_are_told_apart(shape: tuple[int, ...]) -> None:
    dark, bright = np.full(shape, 10, dtype=np.uint8), np.full(shape, 200, dtype=np.uint8)
    recognizer = ForgetMeNot(wins=1)
    for frame in (dark, bright):
        for _ in range(40):
            recognizer.observe(frame)
    assert recognizer.num_tasks == 2
    assert [recognizer.frozen().observe(frame) for frame in (dark, bright)] == [0, 1]


@pytest.mark.parametrize("color", [0, 1, 2])
def test_tasks_that_differ_in_one_color_only_are_told_apart(color: int) -> None:
    one = np.full((84, 84, 3), 100, dtype=np.uint8)
    other = one.copy()
    other[..., color] = 200
    recognizer = ForgetMeNot(wins=1)
    tasks = [recognizer.observe(frame) for frame in (one, other, one) for _ in range(16)]
    assert [tasks[15], tasks[31], tasks[47]] == [0, 1, 0]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"weights": 1}, r"expected the state of a ForgetMeNot, got the keys \['weights'\]"),
        (ForgetMeNot(levels=8).state_dict(), r"levels=8, .* not RecognizerConfig\(levels=4"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(state: dict[str, Any], said: str) -> None:
    recognizer, worlds = ForgetMeNot(levels=4), Worlds(1)
    play(recognizer, worlds, 0, frames=5)
    before = recognizer.state_dict()
    with pytest.raises(ValueError, match=said):
        recognizer.load_state_dict(state)
    assert_same(recognizer.state_dict(), before)


def test_frozen_needs_an_observation() -> None:
    with pytest.raises(RuntimeError, match="nothing was observed yet"):
        ForgetMeNot().frozen()


def assert_same(state: dict[str, Any], other: dict[str, Any]) -> None:
    assert state.keys() == other.keys()
    for name, value in state.items():
        same = value.equal(other[name]) if hasattr(value, "equal") else value == other[name]
        assert same, name


@pytest.mark.parametrize("independent", [float("inf"), 15.0])
def test_a_step_with_two_hundred_tasks_takes_less_than_a_millisecond(independent: float) -> None:
    """It takes 0.6 ms on a quiet core. The limit has some room for slower and for busy ones."""
    recognizer = with_tasks(200, independent)
    frames = np.random.default_rng(1).integers(0, 256, (50, 42, 42), dtype=np.uint8)
    seconds = []
    for frame in frames:
        start = time.thread_time()
        recognizer.observe(frame)
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 1.5e-3
    assert recognizer.num_tasks >= 200


def with_tasks(tasks: int, independent: float = float("inf")) -> ForgetMeNot:
    """One that has opened this many tasks, each a frame of 42x42 random pixels."""
    grown = ForgetMeNot(window=1, wins=1)
    for frame in np.random.default_rng(0).integers(0, 256, (tasks, 42, 42), dtype=np.uint8):
        grown.observe(frame)
    assert grown.num_tasks == tasks
    state = grown.state_dict()
    state["settings"] |= {"window": 4, "wins": 3, "independent": independent}
    recognizer = ForgetMeNot(independent=independent)
    recognizer.load_state_dict(state)
    return recognizer
