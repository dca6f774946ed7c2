"""Screens against products of fractions, and what becomes of them when they are given away."""

from math import log

import numpy as np
import pytest

from ewc.recognition.screens import NOBODY, SMOOTHING, Screens, own_histogram

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


def test_a_histogram_is_the_share_of_each_pixels_level() -> None:
    assert own_histogram(FRAMES[0], LEVELS, ONE_CHANNEL) == pytest.approx(slow_histogram(FRAMES[0]))


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


def test_without_screens_there_are_no_likelihoods() -> None:
    screens = Screens(PIXELS, LEVELS, STRAY)
    assert screens.log_likelihoods(
        FRAMES[0], own_histogram(FRAMES[0], LEVELS, ONE_CHANNEL)
    ).shape == (0,)


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


def test_the_usual_saving_is_the_mean_over_all_frames_but_the_first() -> None:
    screens = Screens(PIXELS, LEVELS, 0.2)
    screens.open(FRAMES[0], owner=0)
    assert screens.usual_saving.tolist() == [0.0]
    for saving in (0.5, 0.7):
        screens.learn(0, FRAMES[1], saving)
    assert screens.usual_saving[0] == pytest.approx(0.6)
    assert screens.copy().usual_saving[0] == pytest.approx(0.6)
