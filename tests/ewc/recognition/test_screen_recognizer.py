"""Screens tell games apart; they are learned, joined and given away, and tasks are merged."""

import math
import time
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ewc.recognition.forget_me_not import ForgetMeNot
from ewc.recognition.screen_recognizer import (
    NOBODY,
    NONE,
    SMOOTHING,
    Probation,
    ScreenRecognizer,
    Screens,
    Turns,
    best_of_tasks,
    own_histogram,
)
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


PIXELS, LEVELS, STRAY = 7, 4, 0.3
RANDOM = np.random.default_rng(0)
FRAMES = RANDOM.integers(0, LEVELS, (9, PIXELS))
ONE_CHANNEL = np.zeros(PIXELS, dtype=np.intp)


def slow_histogram(frame: np.ndarray) -> list[float]:
    total = PIXELS + LEVELS * SMOOTHING
    return [(sum(frame == level) + SMOOTHING) / total for level in frame]


def slow_log_likelihood(frame: np.ndarray, seen: np.ndarray) -> float:
    h = slow_histogram(frame)
    return sum(
        log((1 - STRAY) * sum(other[x] == frame[x] for other in seen) / len(seen) + STRAY * h[x])
        for x in range(PIXELS)
    )


def learned(*groups: np.ndarray, owners: tuple[int, ...]) -> Screens:
    screens = Screens(PIXELS, LEVELS, STRAY)
    for number, (frames, owner) in enumerate(zip(groups, owners, strict=True)):
        screens.open(frames[0], owner)
        for frame in frames[1:]:
            screens.learn(number, frame)
    return screens


def test_each_channel_has_a_histogram_of_its_own() -> None:
    planes = np.array([[0, 0, 1], [1, 1, 1]])
    total = 3 + 2 * SMOOTHING
    shares = [[2, 2, 1], [3, 3, 3]]
    expected = (np.array(shares) + SMOOTHING) / total
    first = own_histogram(planes.reshape(-1), 2, np.array([0, 0, 0, 1, 1, 1]))
    assert first == pytest.approx(expected.reshape(-1))
    last = own_histogram(planes.T.reshape(-1), 2, np.array([0, 1, 0, 1, 0, 1]))  # as colors are
    assert last == pytest.approx(expected.T.reshape(-1))


def test_a_frame_is_as_likely_as_the_frames_learned_say() -> None:
    groups = [FRAMES[:1], FRAMES[1:4], FRAMES[4:8]]
    screens = learned(*groups, owners=(0, 0, 1))
    got = screens.log_likelihoods(FRAMES[8], own_histogram(FRAMES[8], LEVELS, ONE_CHANNEL))
    assert got == pytest.approx([slow_log_likelihood(FRAMES[8], seen) for seen in groups], rel=1e-5)


def test_more_screens_than_columns_are_kept_apart() -> None:
    screens = Screens(PIXELS, LEVELS, STRAY)
    for frame in (*FRAMES, *FRAMES):
        screens.open(frame, owner=0)
    assert screens.frames.tolist() == [1.0] * 18
    assert screens.counts.sum(axis=0).tolist() == [PIXELS] * 18


def test_screens_given_away_change_their_owner_only() -> None:
    screens = learned(FRAMES[:2], FRAMES[2:5], FRAMES[5:], owners=(0, NOBODY, NOBODY))
    before = screens.counts.copy()
    screens.give(NOBODY, 3, at_most=2)
    assert screens.owner.tolist() == [0, 3, 3]
    assert np.array_equal(screens.counts, before)


def test_the_smallest_of_too_many_screens_is_joined_with_the_one_most_alike() -> None:
    dark, bright = np.zeros(PIXELS, dtype=np.intp), np.full(PIXELS, 3)
    nearly_bright = bright.copy()
    nearly_bright[0] = 1
    groups = [nearly_bright[None], np.stack([dark] * 3), np.stack([bright] * 2), dark[None]]
    screens = learned(*groups, owners=(1, 1, 1, 2))
    screens.give(NOBODY, 1, at_most=2)
    assert sorted(zip(screens.owner.tolist(), screens.frames.tolist(), strict=True)) == [
        (1, 3.0),
        (1, 3.0),
        (2, 1.0),
    ]
    joined = screens.counts[:, int(np.flatnonzero(screens.counts[3] == 2)[0])]
    assert joined.reshape(PIXELS, LEVELS)[0].tolist() == [0, 1, 0, 2]
    assert screens.counts.sum() == 7 * PIXELS


def test_a_copy_stays_as_it_is() -> None:
    screens = learned(FRAMES[:2], owners=(0,))
    copy = screens.copy()
    screens.learn(0, FRAMES[2])
    assert copy.frames.tolist() == [2.0]
    assert copy.counts.sum() == 2 * PIXELS


def test_the_mean_saving_is_the_mean_over_all_frames_but_the_first() -> None:
    screens = Screens(PIXELS, LEVELS, 0.2)
    screens.open(FRAMES[0], owner=0)
    assert screens.mean_saving.tolist() == [0.0]
    for saving in (0.5, 0.7):
        screens.learn(0, FRAMES[1], saving)
    assert screens.mean_saving[0] == pytest.approx(0.6)
    assert screens.copy().mean_saving[0] == pytest.approx(0.6)


Plan = list[tuple[int, int]]  # tasks and for how many observations each is reported


def merges(turns: Turns, plan: Plan) -> Plan:
    """Observe tasks, and merge as asked."""
    found: Plan = []
    for task, observations in plan:
        for _ in range(observations):
            pair = turns.observe(dict(found).get(task, task))
            if pair is not None:
                found.append(pair)
                turns.merge(*pair)
    return found


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ([(0, 50), (1, 50), (0, 50), (1, 50)], []),  # visits
        ([(0, 500), (1, 20), (0, 500)], [(1, 0)]),  # too short for a visit
        ([(1, 500), (0, 20), (1, 500)], [(1, 0)]),  # the younger task is the one that goes
        ([(0, 20), (1, 500), (0, 20), (1, 500)], [(1, 0)]),  # a scene at the start of each episode
        ([(0, 500), (1, 5), (0, 500)], []),  # may be a mistake
        ([(0, 500), *[(1, 5), (0, 5)] * 50], []),  # the same many times
        ([(0, 500), (1, 20), (0, 5), (1, 500), (0, 500)], []),  # a mistake soon after a change
        ([(0, 500), (1, 20), (2, 500), (0, 500)], []),  # left for another
        ([(0, 500), (1, 20), (0, 20), (2, 50), (1, 50), (0, 50)], [(1, 0)]),  # once is enough
        ([(0, 50), (1, 20), (0, 20), (2, 20), (0, 20)], [(1, 0), (2, 0)]),
    ],
)
def test_tasks_that_take_turns_are_merged(plan: Plan, expected: Plan) -> None:
    assert merges(Turns(32), plan) == expected


def test_a_visit_of_the_shortest_length_is_a_visit() -> None:
    assert merges(Turns(32), [(0, 50), (1, 32), (0, 50)]) == []
    assert merges(Turns(32), [(0, 50), (1, 31), (0, 50)]) == [(1, 0)]


def test_the_task_before_is_known_by_its_new_number() -> None:
    turns = Turns(32)
    merges(turns, [(2, 50), (1, 20)])
    turns.merge(2, 0)
    assert merges(turns, [(0, 50)]) == [(1, 0)]


@pytest.mark.parametrize("observed", [0, 5, 55, 65, 75, 90])
def test_it_goes_on_from_its_state(observed: int) -> None:
    first, second = Turns(32), Turns(32)
    plan = [0] * 50 + [1] * 20 + [0] * 50
    merges(first, [(task, 1) for task in plan[:observed]])
    second.load_state_dict(first.state_dict())
    rest = [(task, 1) for task in [*plan[observed:], *[2] * 20, *[0] * 50]]
    assert merges(first, rest) == merges(second, rest) != []
    assert second.state_dict() == first.state_dict()


Visits = list[tuple[int, int]]  # tasks and for how many observations each is reported


def merges_on_probation(
    probation: Probation, plan: Visits, known: set[int] | None = None
) -> Visits:
    """Observe tasks, of which each begins its probation when it comes first; merge as asked."""
    found, before = [], NONE
    known = set() if known is None else known
    for task, observations in plan:
        if task not in known:
            probation.begin(task, before)
        known.add(task)
        for _ in range(observations):
            pair = probation.observe(dict(found).get(task, task))
            if pair is not None:
                found.append(pair)
                probation.merge(*pair)
        before = dict(found).get(task, task)
    return found


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ([(0, 50), (1, 50), (2, 50), (0, 50)], []),  # visits
        ([(0, 50), (1, 10), (0, 50)], [(1, 0)]),  # there and back
        ([(0, 50), *[(1, 1), (0, 3)] * 10], [(1, 0)]),  # one of four copies
        ([(0, 50), *[(1, 1), (0, 1)] * 20], [(1, 0)]),  # two of them
        ([(0, 50), *[(1, 9), (0, 1)] * 10], []),  # few mistakes in a new visit
        ([(0, 50), (1, 10), (2, 50)], [(2, 1)]),  # the first screen of a new game
        ([(0, 50), (1, 20), (2, 50)], [(2, 1)]),  # the same, even if it lasts for longer than that
        ([(0, 20), (1, 50)], [(1, 0)]),  # and if nothing came before
        ([(0, 50), (1, 35), (2, 50)], []),  # no screen lasts for as long as a visit
        ([(0, 50), (1, 50), (2, 20), (0, 50)], []),  # nothing new came after a short visit
        ([(0, 50), (1, 4), (0, 10), (2, 50)], [(1, 0)]),  # just before the game changed
        ([(0, 10), (1, 50)], [(1, 0)]),  # the first task has a probation, too
        ([(0, 50), (1, 2), (2, 2), (0, 50)], [(1, 0), (2, 0)]),
    ],
)
def test_a_new_task_that_is_soon_left_is_merged(plan: Visits, expected: Visits) -> None:
    assert merges_on_probation(Probation(30), plan) == expected


def test_tasks_that_have_passed_are_never_merged() -> None:
    probation, known = Probation(30), set[int]()
    assert merges_on_probation(probation, [(0, 50), (1, 50), (0, 50)], known) == []
    assert merges_on_probation(probation, [(1, 1), (0, 3)] * 100, known) == []


def test_merging_asks_for_no_further_merge_of_the_same_task() -> None:
    probation = Probation(30)
    assert merges_on_probation(probation, [(0, 50), (1, 5), (2, 5), (1, 50)]) == [(2, 1)]
    assert probation.before == {}
    assert probation.reported == {}


@pytest.mark.parametrize("observed", [0, 3, 55, 60])
def test_probation_goes_on_from_its_state(observed: int) -> None:
    first, second = Probation(30), Probation(30)
    known = set[int]()
    merges_on_probation(first, [(0, min(observed, 50)), (1, max(0, observed - 50))], known)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    rest = [(0, 20), (2, 5), (0, 60)]
    assert (
        merges_on_probation(first, rest, set(known))
        == merges_on_probation(second, rest, set(known))
        != []
    )
    assert second.state_dict() == first.state_dict()
