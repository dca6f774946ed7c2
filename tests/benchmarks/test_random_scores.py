"""Scores of a random player depend on nothing but the game and the seed."""

import sys

import pytest

from benchmarks.random_scores import main, random_score
from ewc_paper.games.worlds.game import make_game


def test_an_episode_is_repeated_by_its_seed() -> None:
    game = make_game("minatar/breakout")
    scores = [random_score(game, seed) for seed in (*range(20), *range(20))]
    assert scores[:20] == scores[20:]
    assert len(set(scores)) > 1


def test_the_mean_and_its_error_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["random_scores", "minatar/breakout", "--episodes", "3"])
    main()
    game, mean, sign, error = capsys.readouterr().out.split()
    assert (game, sign) == ("minatar/breakout", "±")
    assert float(mean) >= 0
    assert float(error) >= 0
