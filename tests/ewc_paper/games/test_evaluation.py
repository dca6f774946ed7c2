"""Tests of an agent on all its games."""

from pathlib import Path

import numpy as np
import pytest
from support.acting import make_agent

from ewc_paper.games import evaluation
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.episodes import Episodes
from ewc_paper.games.evaluation import Evaluation
from ewc_paper.games.worlds.game import Game, make_game

GAMES = ["minatar/asterix", "minatar/seaquest"]
CONFIG = AgentConfig(history=1, max_episode_steps=200, test_epsilon=0.9)
EPISODES = dict.fromkeys(GAMES, 3)


def make() -> Evaluation:
    return Evaluation(CONFIG, seed=0)


def context_zero(game: str) -> Recognize:
    return lambda frame: 0


def scores_of(played: dict[str, Episodes]) -> dict[str, list[float]]:
    return {game: one.scores for game, one in played.items()}


def test_every_game_has_its_own_number_of_episodes() -> None:
    played = make().play(make_agent(), context_zero, episodes={GAMES[0]: 3, GAMES[1]: 5}, test=0)
    assert {game: len(one.scores) for game, one in played.items()} == {GAMES[0]: 3, GAMES[1]: 5}


def test_scores_depend_on_the_seed_and_the_number_of_the_test_alone(tmp_path: Path) -> None:
    agent, made = make_agent(), make()
    first = made.play(agent, context_zero, episodes=EPISODES, test=1)
    other = made.play(agent, context_zero, episodes=dict.fromkeys(GAMES, 4), test=2)
    again = made.play(agent, context_zero, episodes=EPISODES, test=1, clips_in=tmp_path)
    fresh = make().play(agent, context_zero, episodes=EPISODES, test=1)
    assert scores_of(again) == scores_of(fresh) == scores_of(first)
    assert scores_of(other) != scores_of(first)


def test_each_episode_is_recognized_in_its_own_way() -> None:
    agent, asked = make_agent(), []
    agent.add_context()

    def recognize_in(game: str) -> Recognize:
        asked.append(game)
        return lambda frame: GAMES.index(game)

    played = make().play(agent, recognize_in, episodes=EPISODES, test=0)
    assert [list(played[game].recognized) for game in GAMES] == [["0"], ["1"]]
    assert asked == [game for game in GAMES for _ in range(3)]
    assert agent.context == 0


def test_clips_are_stored_if_wanted(tmp_path: Path) -> None:
    make().play(make_agent(), context_zero, episodes=EPISODES, test=0, clips_in=tmp_path)
    names = sorted(file.name for file in (tmp_path / "clips").iterdir())
    assert names == ["minatar-asterix.npz", "minatar-seaquest.npz"]
    assert np.load(tmp_path / "clips" / names[0])["frames"].shape[1:] == (10, 10)


def test_games_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def counted(name: str, size: int, max_episode_steps: int) -> Game:
        loaded.append(name)
        return make_game(name, size, max_episode_steps)

    monkeypatch.setattr(evaluation, "make_game", counted)
    made = make()
    for test, count in enumerate((2, 3, 1)):
        episodes = dict.fromkeys(GAMES, count)
        made.play(make_agent(), context_zero, episodes=episodes, test=test)
    assert {game: loaded.count(game) for game in GAMES} == dict.fromkeys(GAMES, 3)
