"""Options of `recognition` that do not fit are refused."""

from pathlib import Path
from typing import Any

import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments.recognition.run import Recognition
from ewc_paper.runs.directory import RunDirectory


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"games": ("Pong",)}, "--games must name at least 2 games, got 1"),
        ({"games": ("Pong", "Pong")}, "--games must all differ, got Pong and Pong"),
        ({"games": ("Pong", "Nosuch")}, "--games: no game is called 'Nosuch'"),
        ({"games": ("Pong", "minatar/chess")}, "--games must be all of Atari or all of MinAtar"),
        ({"games": ("minatar/breakout", "minatar/chess")}, "--games: no task is called"),
    ],
)
def test_games_that_cannot_be_told_apart_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        Recognition.preset("quick", **changes)


def single_game_networks(path: Path, sizes: dict[str, int]) -> str:
    """A run of `games` with one network per game, not trained yet."""
    for number, (game, size) in enumerate(sizes.items()):
        RunDirectory(path).part(f"single-{number}").start(
            {"games": [game], "settings": {"size": size}}
        )
    return str(path)


def test_a_game_without_a_network_is_refused(tmp_path: Path) -> None:
    agents = single_game_networks(tmp_path, {"minatar/breakout": 84, "minatar/seaquest": 84})
    games = ("minatar/breakout", "minatar/freeway")
    with pytest.raises(RunError, match="has no single-game network of minatar/freeway"):
        Recognition.preset("quick", games=games, agents=agents)


def test_networks_that_see_frames_of_different_sizes_are_refused(tmp_path: Path) -> None:
    agents = single_game_networks(tmp_path, {"Pong": 84, "Boxing": 42})
    with pytest.raises(RunError, match=r"frames of different sizes, \[42, 84\]"):
        Recognition.preset("quick", games=("Pong", "Boxing"), agents=agents)
