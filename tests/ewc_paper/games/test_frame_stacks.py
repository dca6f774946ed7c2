"""A state is the last frames of its copy, and none from before an episode."""

import numpy as np

from ewc_paper.games.frame_stacks import FrameStacks


def frames(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)


def test_stacks_hold_the_last_frames_and_none_from_before_an_episode() -> None:
    stacks = FrameStacks(2, (1, 2, 2), history=3)
    stacks.push(frames(1, 11), np.array([True, True]))
    stacks.push(frames(2, 12), np.array([False, False]))
    assert stacks.states[:, :, 0, 0].tolist() == [[0, 1, 2], [0, 11, 12]]
    stacks.push(frames(3, 13), np.array([False, True]))
    assert stacks.states[:, :, 0, 0].tolist() == [[1, 2, 3], [0, 0, 13]]
    assert stacks.newest(0)[0, 0, 0] == 3


def test_copies_without_a_frame_stay_as_they_are() -> None:
    stacks = FrameStacks(2, (1, 2, 2), history=2)
    stacks.push(frames(1, 11), np.array([True, True]))
    stacks.push_some(np.array([1]), frames(12))
    assert stacks.states[:, :, 0, 0].tolist() == [[0, 1], [11, 12]]
