"""Contexts of a network that recognizes its games, step by step."""

from pathlib import Path
from typing import Any

import pytest
from support.game_runs import STEPS, make_games

from ewc_paper.experiments.games.data import Network, read_networks
from ewc_paper.experiments.games.recognition import (
    draw_recognition,
    recognition,
    recognized_in_tests,
)


def recognizing_network(path: Path) -> Network:
    return next(one for one in read_networks(make_games(path)) if one.arm == "ewc-fmn")


def test_steps_are_counted_in_contexts_of_the_game_played(tmp_path: Path) -> None:
    match = recognition(recognizing_network(tmp_path))
    assert match is not None
    assert match.game_of == {0: "Pong", 1: "CrazyClimber"}
    assert match.correct == pytest.approx(1 - 2 * 0.025 / 4)  # two switches, each 25 steps late


def test_steps_of_tests_count_once_their_game_was_trained(tmp_path: Path) -> None:
    network = recognizing_network(tmp_path)
    assert recognized_in_tests(network) == pytest.approx(0.9)
    network.tests[0]["recognized"] = {game: {"99": 9} for game in network.games}  # untrained
    network.tests[1]["recognized"]["CrazyClimber"] = {"99": 1000}  # which comes second
    assert recognized_in_tests(network) == pytest.approx(0.9)
    network.tests[1]["recognized"]["Pong"] = {"1": 100}  # taken for the other game: one of seven
    assert recognized_in_tests(network) == pytest.approx(0.9 * 6 / 7)


def test_runs_from_before_it_was_recorded_do_not_say_what_tests_recognized(tmp_path: Path) -> None:
    network = recognizing_network(tmp_path)
    for test in network.tests:
        del test["recognized"]
    assert recognized_in_tests(network) is None


def test_the_bars_cover_all_steps_in_the_color_of_the_game(tmp_path: Path, drawn: Any) -> None:
    draw_recognition(recognizing_network(tmp_path), tmp_path / "recognition.png")
    (ax,) = drawn.panels["recognition"]
    assert drawn.legends["recognition"] == ["Pong", "Crazy Climber"]
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) == 4 * STEPS
    assert len({bar.get_facecolor() for bar in ax.patches}) == 2
    assert min(bar.get_height() for bar in ax.patches) >= 0.08
