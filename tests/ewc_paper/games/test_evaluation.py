"""Tests of an agent: whole episodes, stacks of frames, and drift on stored states."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.acting import STATE_SHAPE, make_agent, make_batch

from ewc_paper.games.evaluation import FrameStacks, Landmark, play, write_clip
from ewc_paper.games.worlds.game import Frame, Step


class Counting:
    """A game of `length` steps that gives a reward of 1 each, then 2 for the last."""

    frame_shape, num_actions = STATE_SHAPE, 6

    def __init__(self, length: int, *, cut: bool = False) -> None:
        self.length, self.cut, self.seeds, self.steps = length, cut, [], 0

    def reset(self, seed: int) -> Frame:
        self.seeds.append(seed)
        self.steps = 0
        return np.zeros(STATE_SHAPE, np.uint8)

    def step(self, action: int) -> Step:
        assert self.steps < self.length, "played on after its end"
        self.steps += 1
        over = self.steps == self.length
        frame = np.full(STATE_SHAPE, self.steps, np.uint8)
        return Step(frame, 1.0 + over, over and not self.cut, over and self.cut)


def test_every_copy_is_played_to_its_own_end_once() -> None:
    agent = make_agent()
    games = [Counting(3), Counting(7, cut=True), Counting(1)]
    before = {name: w.clone() for name, w in agent.network.state_dict().items()}
    played = play(agent, games, lambda frame: 0, epsilon=0.1, seed=5)
    assert played.scores == [4.0, 8.0, 2.0]
    assert [len(game.seeds) for game in games] == [1, 1, 1]
    assert len({game.seeds[0] for game in games}) == 3
    assert [int(frame.max()) for frame in played.frames] == [0, 1, 2, 3]
    assert all(torch.equal(w, before[name]) for name, w in agent.network.state_dict().items())


def test_the_context_is_the_recognized_one_during_the_test_only() -> None:
    agent = make_agent()
    agent.add_context()
    seen = []

    def recognize(frame: Frame) -> int:
        seen.append(agent.context)
        return 1

    play(agent, [Counting(3)], recognize, epsilon=0, seed=0)
    assert seen == [0, 1, 1]
    assert agent.context == 0


def test_stacks_hold_the_last_frames_and_none_from_before_an_episode() -> None:
    stacks = FrameStacks(2, (1, 2, 2), history=3)

    def frames(*values: int) -> np.ndarray:
        return np.array(values, np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)

    stacks.push(frames(1, 11), np.array([True, True]))
    stacks.push(frames(2, 12), np.array([False, False]))
    assert stacks.states[:, :, 0, 0].tolist() == [[0, 1, 2], [0, 11, 12]]
    stacks.push(frames(3, 13), np.array([False, True]))
    assert stacks.states[:, :, 0, 0].tolist() == [[1, 2, 3], [0, 0, 13]]
    assert stacks.newest(0)[0, 0, 0] == 3


def test_drift_is_the_agreement_and_the_regret_by_the_values_of_then() -> None:
    agent = make_agent(optimizer="adam", lr=1e-2)
    states = make_batch(count=50).states
    mark = Landmark.set_up(agent, states)
    assert mark.drift(agent) == (1.0, 0.0)
    for seed in range(20):
        agent.learn(make_batch(seed))
    agreement, regret = mark.drift(agent)
    with torch.no_grad():
        chosen = agent.network(torch.from_numpy(states)).argmax(1).tolist()
    then = mark.values.tolist()
    same = [c == max(range(6), key=row.__getitem__) for c, row in zip(chosen, then, strict=True)]
    lost = [max(row) - row[c] for c, row in zip(chosen, then, strict=True)]
    assert agreement == pytest.approx(sum(same) / 50)
    assert regret == pytest.approx(sum(lost) / 50, rel=1e-5)
    assert regret > 0


def test_a_clip_keeps_every_pixel_that_was_lit(tmp_path: Path) -> None:
    frames = [np.zeros((2, 3, 3), np.uint8) for _ in range(4)]
    frames[1][0, 0, 0] = 255
    frames[2][1, 1, 1] = 255
    write_clip(tmp_path, "minatar/breakout:rotate90", frames)
    with np.load(tmp_path / "clips" / "minatar-breakout-rotate90.npz") as stored:
        clip = stored["frames"]
    assert clip.shape == (4, 3, 3)
    assert clip.dtype == np.uint8
    assert np.argwhere(clip).tolist() == [[1, 0, 0], [2, 1, 1]]
    assert clip[2, 1, 1] == 255
