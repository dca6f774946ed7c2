"""Scores run from random (0) to reference (1); a game without a reference is refused."""

import json
from pathlib import Path

import ale_py
import gymnasium
import pytest

from ewc_paper.games import scores
from ewc_paper.games.scores import ATARI_SCORES, normalized
from ewc_paper.games.worlds import minatar


def test_random_is_zero_and_human_is_one() -> None:
    for name, (random, human) in ATARI_SCORES.items():
        assert normalized(name, random) == 0
        assert normalized(name, human) == 1
    assert normalized("Breakout", 16.1) == pytest.approx((16.1 - 1.7) / (30.5 - 1.7))
    assert normalized("Pong", -21) < 0 < 1 < normalized("Pong", 21)


def test_the_table_holds_57_games_of_the_emulator_and_the_human_is_better() -> None:
    gymnasium.register_envs(ale_py)
    known = {spec.name for spec in gymnasium.registry.values() if spec.namespace == "ALE"}
    assert len(ATARI_SCORES) == 57
    assert ATARI_SCORES.keys() <= known
    assert all(random < human for random, human in ATARI_SCORES.values())


@pytest.mark.parametrize(("name", "near"), [("UpnDown", "UpNDown"), ("pong", "Pong")])
def test_an_unknown_game_is_refused_with_those_of_like_name(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"no human score is known for '{name}'.*{near}"):
        normalized(name, 1.0)


def test_a_game_without_a_human_score_is_refused() -> None:
    with pytest.raises(ValueError, match="no human score is known for 'Tetris'"):
        normalized("Tetris", 1.0)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "minatar_scores.json"
    file.write_text(
        json.dumps(
            {
                "breakout": {"random": 0.5, "reference": 8.5},
                "asterix": {"random": 0.5, "reference": None},
            }
        )
    )
    monkeypatch.setattr(scores, "MINATAR_FILE", file)


@pytest.mark.usefixtures("stored")
def test_a_minatar_task_is_scored_as_its_game() -> None:
    assert normalized("minatar/breakout", 4.5) == 0.5
    assert normalized("minatar/breakout:mirror,actions1,channels1", 4.5) == 0.5


@pytest.mark.usefixtures("stored")
def test_a_minatar_game_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="no reference score is stored for 'minatar/asterix"):
        normalized("minatar/asterix:flip", 1.0)


def test_an_unknown_minatar_game_is_refused() -> None:
    with pytest.raises(ValueError, match="no task is called 'minatar/pong'"):
        normalized("minatar/pong", 1.0)


def test_every_minatar_game_is_stored() -> None:
    stored = json.loads(scores.MINATAR_FILE.read_text())
    assert stored.keys() == set(minatar.GAMES)
    for game in stored.values():
        assert game.keys() == {"random", "reference"}
        assert game["reference"] is None or game["reference"] > game["random"] > 0
