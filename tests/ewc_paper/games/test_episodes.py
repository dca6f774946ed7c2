"""Whole episodes: each copy is played to its own end, and the agent stays as it was."""

import torch
from support.acting import CountingGame, make_agent

from ewc_paper.games.episodes import play_episodes
from ewc_paper.games.worlds.game import Frame


def test_every_copy_is_played_to_its_own_end_once() -> None:
    agent = make_agent()
    games = [CountingGame(3), CountingGame(7, truncated=True), CountingGame(1)]
    before = {name: w.clone() for name, w in agent.network.state_dict().items()}
    played = play_episodes(agent, games, lambda frame: 0, epsilon=0.1, seed=5)
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

    play_episodes(agent, [CountingGame(3)], recognize, epsilon=0, seed=0)
    assert seen == [0, 1, 1]
    assert agent.context == 0


def test_the_recognizer_sees_the_first_copy_that_still_runs() -> None:
    agent, games = make_agent(), [CountingGame(2), CountingGame(4)]
    seen = []

    def recognize(frame: Frame) -> int:
        seen.append(int(frame.max()))
        return 0

    play_episodes(agent, games, recognize, epsilon=0, seed=0)
    assert seen == [0, 1, 2, 3]
    assert games[1].steps == 4
