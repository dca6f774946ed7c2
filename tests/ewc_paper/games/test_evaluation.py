"""Tests of an agent on all its games."""

from pathlib import Path

import numpy as np
import pytest
from support.acting import make_agent

from ewc_paper.games import evaluation
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.evaluation import Evaluation
from ewc_paper.games.worlds.game import Game, make_game

GAMES = ["minatar/asterix", "minatar/seaquest"]
CONFIG = AgentConfig(history=1, test_episodes=3, max_episode_steps=200, test_epsilon=0.9)


def context_zero(game: str) -> Recognize:
    return lambda frame: 0


def test_every_game_has_its_episodes() -> None:
    scores = Evaluation(GAMES, CONFIG, seed=0).scores(make_agent(), context_zero, segments=0)
    assert list(scores) == GAMES
    assert all(len(values) == 3 for values in scores.values())


def test_scores_depend_on_the_seed_and_the_segment_alone(tmp_path: Path) -> None:
    agent, made = make_agent(), Evaluation(GAMES, CONFIG, seed=0)
    first = made.scores(agent, context_zero, segments=1)
    other = made.scores(agent, context_zero, segments=2)
    assert made.scores(agent, context_zero, segments=1, clips_in=tmp_path) == first
    assert Evaluation(GAMES, CONFIG, seed=0).scores(agent, context_zero, segments=1) == first
    assert other != first


def test_each_game_is_recognized_in_its_own_way() -> None:
    agent, asked = make_agent(), []
    agent.add_context()

    def recognize_in(game: str) -> Recognize:
        asked.append(game)
        return lambda frame: GAMES.index(game)

    Evaluation(GAMES, CONFIG, seed=0).scores(agent, recognize_in, segments=0)
    assert asked == GAMES
    assert agent.context == 0


def test_clips_are_stored_if_wanted(tmp_path: Path) -> None:
    made = Evaluation(GAMES, CONFIG, seed=0)
    made.scores(make_agent(), context_zero, segments=0, clips_in=tmp_path)
    names = sorted(file.name for file in (tmp_path / "clips").iterdir())
    assert names == ["minatar-asterix.npz", "minatar-seaquest.npz"]
    assert np.load(tmp_path / "clips" / names[0])["frames"].shape[1:] == (10, 10)


def test_games_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def counted(name: str, size: int, max_episode_steps: int) -> Game:
        loaded.append(name)
        return make_game(name, size, max_episode_steps)

    monkeypatch.setattr(evaluation, "make_game", counted)
    made = Evaluation(GAMES, CONFIG, seed=0)
    for segments in range(2):
        made.scores(make_agent(), context_zero, segments=segments)
    assert loaded == [game for game in GAMES for _ in range(3)]
