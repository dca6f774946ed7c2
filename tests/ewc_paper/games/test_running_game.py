"""Copies in play: their states are stacks of their frames, and they are restored."""

import json

import numpy as np
import pytest

from ewc_paper.games.running_game import RunningGame
from ewc_paper.games.worlds.environments import Environments

COPIES, HISTORY = 3, 2
BREAKOUT = "minatar/breakout"


def make(seed: int = 0) -> RunningGame:
    return RunningGame(BREAKOUT, COPIES, seed=seed, size=84, max_episode_steps=20, history=HISTORY)


def actions(rows: int) -> np.ndarray:
    return np.random.default_rng(1).integers(6, size=(rows, COPIES))


def test_states_are_the_last_frames_of_each_episode() -> None:
    game = make()
    reference = Environments(BREAKOUT, COPIES, seed=0, size=84, max_episode_steps=20)
    before = np.zeros_like(reference.frames)
    for row in actions(60):
        before[reference.is_first] = 0
        np.testing.assert_array_equal(
            game.states, np.concatenate([before, reference.frames], axis=1)
        )
        before = reference.frames.copy()
        expected, step = reference.step(row), game.step(row)
        assert step.scores == expected.scores
        np.testing.assert_array_equal(step.rewards, expected.rewards)


def test_each_copy_is_seen_in_turn() -> None:
    game = make()
    for row, chosen in enumerate(actions(7)):
        np.testing.assert_array_equal(game.frame_in_turn(row), game.frames[row % COPIES])
        game.step(chosen)


@pytest.mark.parametrize("rows", [0, 7, 45])
def test_it_is_restored_where_it_was(rows: int) -> None:
    game, again = make(), make()
    for row in actions(rows):
        game.step(row)
    state = game.state_dict()
    assert json.dumps(state["environments"])  # plain values
    for row in actions(3):
        again.step(row)  # whatever it did before must not matter
    again.load_state_dict(state)
    for row in actions(30):
        np.testing.assert_array_equal(again.states, game.states)
        np.testing.assert_array_equal(again.is_first, game.is_first)
        assert again.step(row).scores == game.step(row).scores


def test_a_saved_state_is_a_copy() -> None:
    game = make()
    state = game.state_dict()
    saved = state["states"].clone()
    for row in actions(5):
        game.step(row)
    assert state["states"].equal(saved)
