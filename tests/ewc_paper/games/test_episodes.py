"""Whole episodes: each copy is played to its own end, and the agent stays as it was."""

from typing import Any

import numpy as np
import pytest
import torch
from support.acting import ACTIONS, CountingGame, make_agent

from ewc_paper.games.agent import Agent
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.episodes import Episodes, play_episodes
from ewc_paper.games.worlds.game import Frame, GameStep


def play(agent: Any, games: list[Any], recognizers: list[Recognize], epsilon: float) -> Episodes:
    return play_episodes(agent, games, recognizers, history=1, epsilon=epsilon, seed=5)


def always(context: int) -> Recognize:
    return lambda frame: context


def test_every_copy_is_played_to_its_own_end_once() -> None:
    agent = make_agent()
    games = [CountingGame(3), CountingGame(7, truncated=True), CountingGame(1)]
    before = {name: w.clone() for name, w in agent.network.state_dict().items()}
    played = play(agent, games, [always(0)] * 3, epsilon=0.1)
    assert played.scores == [4.0, 8.0, 2.0]
    assert [len(game.seeds) for game in games] == [1, 1, 1]
    assert len({game.seeds[0] for game in games}) == 3
    assert [int(frame.max()) for frame in played.first_frames] == [0, 1, 2, 3]
    assert all(torch.equal(w, before[name]) for name, w in agent.network.state_dict().items())


def test_the_context_is_the_recognized_one_during_the_test_only() -> None:
    agent = make_agent()
    agent.add_context()
    seen = []

    def recognize(frame: Frame) -> int:
        seen.append(agent.context)
        return 1

    play(agent, [CountingGame(3)], [recognize], epsilon=0)
    assert seen == [0, 1, 1]
    assert agent.context == 0


def test_every_recognizer_sees_all_frames_of_its_own_copy() -> None:
    agent, games = make_agent(), [CountingGame(2), CountingGame(4)]
    seen: list[list[int]] = [[], []]

    def recognize_for(copy: int) -> Recognize:
        def recognize(frame: Frame) -> int:
            seen[copy].append(int(frame.max()))
            return 0

        return recognize

    play(agent, games, [recognize_for(0), recognize_for(1)], epsilon=0)
    assert seen == [[0, 1], [0, 1, 2, 3]]
    assert games[1].steps == 4


class NotingGame(CountingGame):
    """Notes the actions that it was given."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.actions: list[int] = []

    def step(self, action: int) -> GameStep:
        self.actions.append(action)
        return super().step(action)


def agent_with_a_favorite_per_context(contexts: int) -> Agent:
    """Its greedy action in context c is c."""
    agent = make_agent()
    for context in range(contexts):
        agent.enter(context)
        with torch.no_grad():
            last = agent.network.contexts[context].biases[-1]
            last[context] = 1e3
            assert len(last) == ACTIONS
    agent.enter(0)
    return agent


def test_every_copy_acts_in_its_own_context_with_one_pass_per_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, games = agent_with_a_favorite_per_context(3), [NotingGame(3) for _ in range(4)]
    passes: list[tuple[int, int]] = []
    act = agent.act

    def counted(states: Any, epsilon: float, random: Any) -> Any:
        passes.append((agent.context, len(states)))
        return act(states, epsilon, random)

    monkeypatch.setattr(agent, "act", counted)

    def changing(frame: Frame) -> int:  # its context changes within the episode
        return 1 if frame.max() < 2 else 2

    played = play(agent, games, [always(2), changing, always(2), always(0)], epsilon=0)
    assert [game.actions for game in games] == [[2, 2, 2], [1, 1, 2], [2, 2, 2], [0, 0, 0]]
    assert passes == [(0, 1), (1, 1), (2, 2)] * 2 + [(0, 1), (2, 3)]
    assert played.recognized == {"2": 7, "1": 2, "0": 3}


def test_copies_in_one_context_act_as_in_a_single_pass() -> None:
    """So tests of agents that are told the game do not depend on how contexts are grouped."""
    agent, games = make_agent(), [NotingGame(5) for _ in range(3)]
    play(agent, games, [always(0)] * 3, epsilon=0.5)
    explored = np.array([game.actions for game in games])
    again = [NotingGame(5) for _ in range(3)]
    play(agent, again, [always(0)] * 3, epsilon=0.5)
    assert np.array_equal(explored, [game.actions for game in again])
    assert len(np.unique(explored)) > 1
