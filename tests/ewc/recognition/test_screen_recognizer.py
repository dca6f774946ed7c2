"""What is promised of the recognizer whose tasks are sets of screens."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ewc.recognition.forget_me_not import ForgetMeNot
from ewc.recognition.screen_recognizer import ScreenRecognizer, best_of_tasks
from ewc_paper.runs.checkpoint import load_checkpoint, save_checkpoint

SHAPE = (12, 12)


class Worlds:
    """Tasks of several screens, each a typical frame of which most pixels are shown."""

    def __init__(self, tasks: int, screens: int = 1, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.typical = self.random.integers(0, 256, (tasks, screens, *SHAPE), dtype=np.uint8)

    def frame(self, task: int, screen: int = 0) -> np.ndarray:
        noise = self.random.integers(0, 256, SHAPE, dtype=np.uint8)
        return np.where(self.random.random(SHAPE) < 0.1, noise, self.typical[task, screen])


def play(
    recognizer: Any, worlds: Worlds, task: int, frames: int = 24, screen: int = 0
) -> list[int]:
    return [recognizer.observe(worlds.frame(task, screen)) for _ in range(frames)]


def test_new_tasks_are_opened_and_old_ones_known_again_at_once() -> None:
    recognizer, worlds = ScreenRecognizer(shortest=20), Worlds(3)
    assert play(recognizer, worlds, 0) == [0] * 24
    for task in (1, 2):
        assert play(recognizer, worlds, task) == [task - 1] * 4 + [task] * 20
    for task in (0, 2, 1):
        assert play(recognizer, worlds, task)[1:] == [task] * 23
    assert recognizer.tasks == [0, 1, 2]
    assert recognizer.posterior.shape == (4,)
    assert recognizer.posterior.sum() == pytest.approx(1)


def test_a_screen_that_one_of_four_copies_shows_belongs_to_the_task() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2, screens=2)
    play(recognizer, worlds, 0)
    for _ in range(10):
        assert play(recognizer, worlds, 0, 3) == [0] * 3
        assert play(recognizer, worlds, 0, 1, screen=1) == [0]
    assert play(recognizer, worlds, 0, screen=1) == [0] * 24
    assert recognizer.num_tasks == 1


@pytest.mark.parametrize(("noise", "levels"), [(20, 32), (40, 8), (80, 4)])
def test_noisy_pictures_are_told_apart_with_few_levels(noise: int, levels: int) -> None:
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (3, 6, 6)).repeat(4, axis=1).repeat(4, axis=2)
    recognizer = ScreenRecognizer(levels=levels)
    last = []
    for picture in (*pictures, *pictures):
        for _ in range(300):
            noisy = picture + random.normal(0, noise, picture.shape)
            task = recognizer.observe(np.clip(noisy, 0, 255).astype(np.uint8))
        last.append(task)
    assert last == [0, 1, 2] * 2
    assert recognizer.num_tasks == 3


def test_frames_of_one_color_say_nothing() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2)
    black = np.zeros(SHAPE, dtype=np.uint8)
    assert [recognizer.observe(black) for _ in range(20)] == [0] * 20
    for task in (0, 1):
        play(recognizer, worlds, task)
        posterior = recognizer.posterior
        assert [recognizer.observe(black) for _ in range(20)] == [task] * 20
        assert recognizer.posterior.tolist() == posterior.tolist()
        assert not recognizer.decided


def long_visit(recognizer: Any, worlds: Worlds, task: int) -> list[int]:
    """A visit in which all copies of the game change their screen, again and again."""
    labels: list[int] = []
    for stay in range(40):
        labels += play(recognizer, worlds, task, 50, screen=stay % worlds.typical.shape[1])
    return labels


def test_a_long_visit_with_many_screens_stays_one_task() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2, screens=5)
    long_visit(recognizer, worlds, 0)
    assert recognizer.tasks == [0]
    assert set(long_visit(recognizer, worlds, 1)[-500:]) == set(recognizer.tasks[1:])
    assert recognizer.num_tasks == 2
    assert set(play(recognizer, worlds, 0, 100, screen=3)[1:]) == {0}
    paper = ForgetMeNot(levels=32, wins=1)
    long_visit(paper, worlds, 0)
    assert paper.num_tasks > 2  # every screen is a task of its own


def test_a_screen_that_one_copy_shows_for_long_stays_with_its_task() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2, screens=2)
    play(recognizer, worlds, 0, 400)
    play(recognizer, worlds, 0, 20, screen=1)  # all copies at once: it looks like a new task
    assert recognizer.tasks == [0, 1]
    for _ in range(500):
        play(recognizer, worlds, 0, 3)
        play(recognizer, worlds, 0, 1, screen=1)
    assert recognizer.tasks == [0]
    assert play(recognizer, worlds, 1, 300)[-1] == 2


def test_scenes_that_all_copies_show_together_are_one_task() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2, screens=2)
    play(recognizer, worlds, 0, 500)
    for _ in range(3):  # episodes that all copies begin and end together
        play(recognizer, worlds, 1, 200)
        play(recognizer, worlds, 1, 1300, screen=1)
    assert recognizer.tasks == [0, 1]
    assert play(recognizer, worlds, 0)[1:] == [0] * 23


def test_a_scene_that_comes_late_and_takes_turns_belongs_to_its_task() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2, screens=2)
    play(recognizer, worlds, 0, 500)
    play(recognizer, worlds, 1, 500)
    assert play(recognizer, worlds, 1, 500, screen=1)[-1] == 2
    assert play(recognizer, worlds, 1, 100)[-1] == 1
    assert play(recognizer, worlds, 1, 100, screen=1)[-1] == 1
    assert recognizer.tasks == [0, 1]


def test_a_new_task_is_noticed_soon_after_an_unknown_frame_of_the_task_before() -> None:
    """Its first frame is not given to that task together with the unknown one."""
    recognizer, worlds = ScreenRecognizer(), Worlds(3)
    play(recognizer, worlds, 0)
    for task in (1, 0, 0, 0):
        assert play(recognizer, worlds, task, 1) == [0]
    assert play(recognizer, worlds, 2) == [0] * 3 + [1] * 21


def test_a_new_task_is_noticed_after_a_long_time_of_doubt() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2)
    play(recognizer, worlds, 0)
    for _ in range(400):  # three of five frames are unlike anything
        for is_noise in (True, False, True, False, True):
            noise = worlds.random.integers(0, 256, SHAPE, dtype=np.uint8)
            recognizer.observe(noise if is_noise else worlds.frame(0))
    known = set(recognizer.tasks)
    assert not known & set(play(recognizer, worlds, 1, 100)[12:])


def dark(random: np.random.Generator, share: float) -> np.ndarray:
    """A black frame in which this share of the pixels has random levels."""
    lit = random.random(SHAPE) < share
    return np.where(lit, random.integers(0, 256, SHAPE), 0).astype(np.uint8)


def test_dark_frames_that_share_only_black_are_told_apart() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(1)
    play(recognizer, worlds, 0)
    recognizer.observe(dark(worlds.random, 0.05))  # a dark screen of task 0, seen once
    assert set(play(recognizer, worlds, 0, 300)) == {0}
    other = dark(worlds.random, 0.4)
    assert [recognizer.observe(other) for _ in range(300)] == [0] * 4 + [1] * 296


def test_sparse_frames_with_their_marks_in_the_same_channel_are_told_apart() -> None:
    """Most marks of the second task are where the first has some, in a channel that is half full.

    Without regard to channels any mark would be a surprise, and one that is expected a great deal.
    """
    bricks, aliens = np.zeros((2, 10, 10, 10), dtype=np.uint8)
    bricks[3, 1:4] = 255
    aliens[3, 2:4, :7] = aliens[3, 4, :6] = 255
    recognizer = ScreenRecognizer(levels=2)
    assert [recognizer.observe(bricks) for _ in range(8)] == [0] * 8
    assert [recognizer.observe(aliens) for _ in range(8)] == [0] * 4 + [1] * 4
    assert recognizer.observe(bricks) == 0


@pytest.mark.parametrize(("usual", "task"), [(0.0, 0), (0.7, 1)])
def test_a_task_that_shares_half_of_its_picture_can_be_another(usual: float, task: int) -> None:
    """Its frames are coded better by the old screen than without one, but worse than usual."""
    recognizer, worlds = ScreenRecognizer(usual=usual), Worlds(2)
    half = worlds.random.random(SHAPE) < 0.5
    worlds.typical[1, 0][half] = worlds.typical[0, 0][half]
    play(recognizer, worlds, 0)
    assert play(recognizer, worlds, 1)[-1] == task
    assert play(recognizer, worlds, 0)[-1] == 0


def test_a_merge_is_told_once_and_the_younger_task_is_gone() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(1, screens=2)
    told = []
    for screen in (0, 1, 0, 1):
        for _ in range(120):
            task = recognizer.observe(worlds.frame(0, screen))
            assert task in recognizer.tasks
            told += recognizer.merged
    assert told == [(1, 0)]
    assert recognizer.tasks == [0]
    assert recognizer.posterior.shape == (2,)
    assert set(play(recognizer, worlds, 0, screen=1)) == {0}
    worlds = Worlds(1, seed=1)
    assert play(recognizer, worlds, 0)[-1] == 2  # the number 1 is not used again


def test_real_tasks_are_never_merged() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2)
    for task in (0, 1) * 5:
        assert set(play(recognizer, worlds, task, 300)[5:]) == {task}
    assert recognizer.tasks == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_visits_of_the_shortest_length_are_never_merged(seed: int) -> None:
    recognizer, worlds = ScreenRecognizer(shortest=40), Worlds(4, seed=seed)
    told, game, games = [], 0, []
    for _ in range(30):
        game = (game + int(worlds.random.integers(1, 4))) % 4
        games.append(game)
        for _ in range(40):
            recognizer.observe(worlds.frame(game))
            told += recognizer.merged
    assert told == []
    assert recognizer.num_tasks == len(set(games)) > 2


def test_frames_are_decided_when_it_is_clear_whose_they_are() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(2)
    decided = []
    for task in (0, 1, 0):
        for _ in range(8):
            recognizer.observe(worlds.frame(task))
            decided.append(recognizer.decided)
    assert [number for number, now in enumerate(decided) if not now] == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_task_keeps_a_bounded_number_of_screens() -> None:
    recognizer, worlds = ScreenRecognizer(screens=3), Worlds(1, screens=12)
    for stay in range(60):
        play(recognizer, worlds, 0, 20, screen=stay % 12)
    assert len(recognizer.state_dict()["frames"]) <= 3 * recognizer.num_tasks + 1


def test_a_frozen_one_knows_the_tasks_and_learns_nothing() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(3)
    for task in (0, 1):
        play(recognizer, worlds, task)
    before = recognizer.state_dict()
    frozen = recognizer.frozen()
    assert frozen.posterior == pytest.approx([0.5, 0.5])
    for task in (1, 0, 1):
        assert [frozen.observe(worlds.frame(task)) for _ in range(8)][1:] == [task] * 7
    assert {frozen.observe(worlds.frame(2)) for _ in range(40)} <= {0, 1}
    assert_same(recognizer.state_dict(), before)
    play(recognizer, worlds, 2)
    assert len(frozen.posterior) == 2


@pytest.mark.parametrize(("usual", "task"), [(0.0, 0), (0.5, 1)])
def test_a_frozen_one_holds_screens_to_what_they_usually_save_too(usual: float, task: int) -> None:
    """The frame is nearer to the sharp picture of task 0, but far from what that usually shows."""
    recognizer, worlds = ScreenRecognizer(usual=usual), Worlds(2)
    play(recognizer, worlds, 0)
    for _ in range(60):
        noise = worlds.random.integers(0, 256, SHAPE, dtype=np.uint8)
        noisy = worlds.random.random(SHAPE) < 0.4
        recognizer.observe(np.where(noisy, noise, worlds.frame(1)))
    assert recognizer.tasks == [0, 1]
    mixed = np.where(worlds.random.random(SHAPE) < 0.55, worlds.frame(0), worlds.frame(1))
    assert recognizer.frozen().observe(mixed) == task


def test_a_frozen_one_before_the_first_task_says_task_0() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(1)
    with pytest.raises(RuntimeError, match="nothing was observed yet"):
        recognizer.frozen()
    play(recognizer, worlds, 0, frames=2)
    assert recognizer.frozen().observe(worlds.frame(0)) == 0


@pytest.mark.parametrize("observed", [0, 1, 30, 103, 190])
def test_it_goes_on_identically_from_a_checkpoint(observed: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"shortest": 30, "screens": 2}
    first, second = ScreenRecognizer(**settings), ScreenRecognizer(**settings)
    worlds = Worlds(2, screens=3)
    plan = [(0, 0), (0, 1), (0, 2), (0, 0), (1, 0), (1, 1), (0, 2), (0, 1)] * 2
    stream = [worlds.frame(task, screen) for task, screen in plan for _ in range(20)]
    for frame in stream[:observed]:
        first.observe(frame)
    save_checkpoint(tmp_path, {"recognizer": first.state_dict()})
    state = load_checkpoint(tmp_path)
    assert state is not None
    second.load_state_dict(state["recognizer"])
    for frame in stream[observed:]:
        assert first.observe(frame) == second.observe(frame)
        assert (first.decided, first.merged) == (second.decided, second.merged)
        assert first.posterior.tolist() == second.posterior.tolist()
    assert_same(first.state_dict(), second.state_dict())


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"weights": 1}, r"expected the state of a ScreenRecognizer, got the keys \['weights'\]"),
        (ScreenRecognizer(levels=8).state_dict(), r"levels=8, .* not .*levels=4"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(state: dict[str, Any], said: str) -> None:
    recognizer, worlds = ScreenRecognizer(levels=4), Worlds(1)
    play(recognizer, worlds, 0, frames=5)
    before = recognizer.state_dict()
    with pytest.raises(ValueError, match=said):
        recognizer.load_state_dict(state)
    assert_same(recognizer.state_dict(), before)


def test_frames_of_another_shape_change_nothing() -> None:
    recognizer, worlds = ScreenRecognizer(), Worlds(1)
    play(recognizer, worlds, 0)
    before = recognizer.state_dict()
    for one in (recognizer, recognizer.frozen()):
        with pytest.raises(ValueError, match=r"expected frames of shape \(12, 12\) as before"):
            one.observe(np.zeros((5, 6), dtype=np.uint8))
    assert_same(recognizer.state_dict(), before)


def test_a_task_is_as_likely_as_its_best_screen() -> None:
    best = best_of_tasks(np.array([-1.0, -3.0, -2.0, -0.5]), np.array([0, 4, 4, -1]), [0, 2, 4])
    assert best.tolist() == [-1.0, -np.inf, -2.0]


def test_a_step_with_fifty_tasks_of_three_screens_takes_less_than_a_millisecond() -> None:
    random = np.random.default_rng(0)
    recognizer = ScreenRecognizer()
    frame = random.integers(0, 256, (42, 42), dtype=np.uint8)
    recognizer.observe(frame)
    for number in range(1, 150):
        recognizer._screens.open(random.integers(0, 32, 42 * 42), number % 50)
    recognizer.tasks = list(range(50))
    recognizer._log_posterior = np.log(np.full(51, 1 / 51))
    fastest, deadline = math.inf, time.monotonic() + 20
    while fastest >= 1e-3 and time.monotonic() < deadline:  # other programs compete for the cache
        start = time.thread_time()
        recognizer.observe(frame)
        fastest = min(fastest, time.thread_time() - start)
    assert len(recognizer._screens) == 150
    assert fastest < 1e-3


def assert_same(state: dict[str, Any], other: dict[str, Any]) -> None:
    assert state.keys() == other.keys()
    for name, value in state.items():
        same = value.equal(other[name]) if hasattr(value, "equal") else value == other[name]
        assert same, name
