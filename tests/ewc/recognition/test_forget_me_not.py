"""The forget-me-not process, beside explicit loops over its equations."""

import math
import time
from dataclasses import Field, astuple, fields
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ewc.recognition.config import RecognizerConfig, ScreenRecognizerConfig
from ewc.recognition.forget_me_not import (
    SUM_BY_PIXEL_ABOVE,
    ForgetMeNot,
    Multinomials,
    WindowCounts,
    channel_of_pixels,
    check_frame,
    downscaled,
    normalized,
    switched,
    to_levels,
)
from ewc.recognition.screen_recognizer import ScreenRecognizer


class SlowForgetMeNot:
    """The process as the appendix tells it: models are updated in the window and reverted."""

    def __init__(
        self, levels: int, prior: float, window: int, wins: int, independent: float
    ) -> None:
        self.independent = independent
        self.levels, self.prior, self.window, self.needed = levels, prior, window, wins
        self.learned: list[list[list[int]]] = [[], []]  # frames of each model, the last is held out
        self.p = [0.5, 0.5]
        self.waiting: list[list[int]] = []
        self.time = self.wins = 0

    def predict(self, frame: list[int], seen: list[list[int]]) -> float:
        a = self.prior / self.levels
        return (
            self.independent
            / len(frame)
            * sum(
                log((sum(other[x] == frame[x] for other in seen) + a) / (len(seen) + self.prior))
                for x in range(len(frame))
            )
        )

    def observe(self, image: np.ndarray) -> tuple[int, list[float]]:
        frame = [int(value) * self.levels // 256 for value in image.ravel()]
        self.time += 1
        k = len(self.learned)
        if self.time > 1:
            switch = 1 / self.time
            self.p = [
                sum(self.p[b] * (1 - switch if a == b else switch / (k - 1)) for b in range(k))
                for a in range(k)
            ]
        logs = [self.predict(frame, self.learned[c] + self.waiting) for c in range(k)]
        joint = [self.p[c] * exp(logs[c] - max(logs)) for c in range(k)]
        self.p = [value / sum(joint) for value in joint]
        self.waiting.append(frame)
        if len(self.waiting) == self.window:
            self.end_window()
        return int(np.argmax(self.p[:-1])), self.p

    def end_window(self) -> None:
        best = int(np.argmax(self.p))
        held_out = best == len(self.learned) - 1
        self.wins = self.wins + 1 if held_out else 0
        if not held_out or self.wins == self.needed:
            self.learned[best] = self.learned[best] + self.waiting
            self.wins = 0
            if held_out:
                self.learned.append([])
                self.p = [*self.p, 0.0]
        self.waiting = []


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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"levels": 1}, "expected levels of at least 2 and at most 256, got 1"),
        ({"levels": 257}, "expected levels of at least 2 and at most 256, got 257"),
        ({"prior": 0.0}, r"expected prior of at least 1e-12 and at most 1e\+12, got 0.0"),
        ({"prior": math.inf}, "expected prior .*, got inf"),
        ({"prior": math.nan}, "expected prior .*, got nan"),
        ({"independent": 0}, "expected independent of at least 1e-12, got 0"),
        ({"independent": math.nan}, "expected independent .*, got nan"),
        ({"window": 0}, "expected window of at least 1, got 0"),
        ({"wins": 0}, "expected wins of at least 1, got 0"),
        ({"side": 0}, "expected side of at least 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        ForgetMeNot(**settings)


@pytest.mark.parametrize("name", ["levels", "window", "wins", "side"])
@pytest.mark.parametrize("value", [2.5, 4.0, "4", None, True])
def test_what_is_no_integer_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^expected {name} as an integer, got {value!r}$"):
        ForgetMeNot(**{name: value})


@pytest.mark.parametrize("name", ["prior", "independent"])
@pytest.mark.parametrize("value", ["1", None, True])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^expected {name} as a number, got {value!r}$"):
        ForgetMeNot(**{name: value})


def test_numbers_of_numpy_become_plain() -> None:
    config = RecognizerConfig(np.int64(8), np.float32(0.5), np.uint8(4), 3, 15, 42)  # type: ignore[arg-type]
    assert config == RecognizerConfig(8, 0.5, 4, 3, 15.0, 42)
    assert type(config.levels) is type(config.window) is int
    assert type(config.prior) is type(config.independent) is float


def test_the_defaults_are_those_of_the_recognizers() -> None:
    assert ForgetMeNot().config == RecognizerConfig()
    assert ScreenRecognizer().config == ScreenRecognizerConfig()
    assert astuple(RecognizerConfig()) == (16, 1.0, 4, 3, math.inf, 42)


@pytest.mark.parametrize(
    ("recognizer", "settings"),
    [(ForgetMeNot, RecognizerConfig), (ScreenRecognizer, ScreenRecognizerConfig)],
)
def test_every_setting_is_an_argument_and_described_once(recognizer: type, settings: type) -> None:
    described = " ".join((recognizer.__doc__ or "").split())
    for setting in fields(settings):
        assert set(setting.metadata) == {"help", "low", "high"}
        assert f"{setting.name}: {setting.metadata['help']}." in described
        value = setting.metadata["low"]
        assert getattr(recognizer(**{setting.name: value}).config, setting.name) == value


@pytest.mark.parametrize("setting", fields(RecognizerConfig), ids=lambda setting: setting.name)
def test_the_limits_themselves_are_allowed(setting: Field[Any]) -> None:
    for limit in (setting.metadata["low"], setting.metadata["high"]):
        if limit is not None:
            assert getattr(RecognizerConfig(**{setting.name: limit}), setting.name) == limit


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("shape", "factor", "small"),
    [
        ((1, 84, 84), 2, (1, 42, 42)),
        ((210, 160), 5, (42, 32)),
        ((3, 7, 8), 2, (3, 3, 4)),
    ],
)
def test_downscaling_takes_the_mean_over_squares(
    shape: tuple[int, ...], factor: int, small: tuple[int, ...]
) -> None:
    frame = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    expected = np.empty(small)
    for index in np.ndindex(*small):
        row, column = (factor * i for i in index[-2:])
        square = frame[(*index[:-2], slice(row, row + factor), slice(column, column + factor))]
        expected[index] = np.floor(square.astype(np.float64).mean())
    assert np.array_equal(downscaled(frame, max(small[-2:])), expected)


@pytest.mark.parametrize(
    ("shape", "small"), [((2, 200), (1, 40)), ((1, 100), (1, 33)), ((3, 100, 1), (3, 33, 1))]
)
def test_a_side_shorter_than_a_square_is_averaged_whole(
    shape: tuple[int, ...], small: tuple[int, ...]
) -> None:
    frame = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    got = downscaled(frame, 42)
    assert got.shape == small
    first = frame[..., : shape[-2] // small[-2], : shape[-1] // small[-1]]
    assert np.array_equal(got[..., 0, 0], np.floor(first.mean(axis=(-2, -1))))


@pytest.mark.parametrize("colors", [1, 3, 4])
@pytest.mark.parametrize("front", [(), (2,)])
def test_colors_in_the_last_axis_are_averaged_apart(colors: int, front: tuple[int, ...]) -> None:
    frame = RANDOM.integers(0, 256, (*front, 210, 160, colors), dtype=np.uint8)
    expected = [downscaled(frame[..., color], 42) for color in range(colors)]
    assert np.array_equal(downscaled(frame, 42), np.stack(expected, axis=-1))


def test_what_is_small_enough_stays_as_it_is() -> None:
    frame = RANDOM.integers(0, 256, (10, 10, 10), dtype=np.uint8)
    assert downscaled(frame, 42) is frame


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((2, 3), [0] * 6),
        ((2, 2, 3), [0] * 6 + [1] * 6),
        ((2, 2, 1, 3), [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3),
        ((5, 6, 3), [0, 1, 2] * 30),
    ],
)
def test_the_channel_of_a_pixel_is_its_color_or_its_plane(
    shape: tuple[int, ...], channels: list[int]
) -> None:
    assert channel_of_pixels(np.zeros(shape, dtype=np.uint8)).tolist() == channels


@pytest.mark.parametrize("levels", [2, 3, 8, 256])
def test_levels_are_even_parts_of_the_range(levels: int) -> None:
    frame = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert to_levels(frame, levels).tolist() == [value * levels // 256 for value in range(256)]


@pytest.mark.parametrize(
    ("frame", "error", "said"),
    [
        ([[1, 2]], TypeError, "expected a frame as a numpy array, got list"),
        (np.zeros((4, 4)), TypeError, r"expected a frame of uint8 \(0 to 255\), got float64"),
        (np.zeros(4, dtype=np.uint8), ValueError, r"got the shape \(4,\)"),
        (np.zeros((0, 4), dtype=np.uint8), ValueError, r"got the shape \(0, 4\)"),
    ],
)
def test_what_is_no_frame_is_refused(frame: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        check_frame(frame, None)


@pytest.mark.parametrize("states", [1, 2, 3, 15])
@pytest.mark.parametrize("switch", [0.5, 0.1, 1e-7])
def test_a_switch_is_a_product_with_the_matrix_of_the_paper(states: int, switch: float) -> None:
    matrix = np.full((states, states), switch / max(1, states - 1))
    np.fill_diagonal(matrix, 1 - switch if states > 1 else 1)
    assert matrix.sum(axis=0) == pytest.approx(np.ones(states))
    p = np.random.default_rng(0).dirichlet(np.ones(states))
    assert np.exp(switched(np.log(p), switch)) == pytest.approx(matrix @ p, rel=1e-14)


def test_probabilities_far_below_the_smallest_number_are_kept() -> None:
    log_p = normalized(np.array([-1e5, -1e5 - np.log(3), -np.inf]))
    assert np.exp(log_p) == pytest.approx([0.75, 0.25, 0.0])
    assert switched(np.array([0.0, -1e5]), 1e-6)[1] == pytest.approx(np.log(1e-6))


LEVELS, PRIOR, INDEPENDENT = 4, 0.5, 1.2


@pytest.mark.parametrize("pixels", [1024, 1025])
def test_many_models_predict_as_each_of_them_alone(pixels: int) -> None:
    """Above `SUM_BY_PIXEL_ABOVE` counts the sum goes another way than below."""
    random, total = np.random.default_rng(0), 80
    assert total * pixels > SUM_BY_PIXEL_ABOVE
    many = Multinomials(1, pixels, LEVELS, PRIOR, INDEPENDENT)
    window = WindowCounts(pixels * LEVELS)
    window.add(many.cells(random.integers(0, LEVELS, pixels)))
    frame = many.cells(random.integers(0, LEVELS, pixels))
    alone = []
    for model in range(total):
        one = Multinomials(1, pixels, LEVELS, PRIOR, INDEPENDENT)
        seen = WindowCounts(pixels * LEVELS)
        for _ in range(model):
            seen.add(many.cells(random.integers(0, LEVELS, pixels)))
        one.learn(0, seen)
        many.learn(model, seen)
        many.add()
        alone.append(one.log_predictive(frame, window)[0])
    assert many.log_predictive(frame, window)[:-1] == pytest.approx(alone, rel=1e-7)
    assert many.frames.tolist() == [*range(total), 0]
