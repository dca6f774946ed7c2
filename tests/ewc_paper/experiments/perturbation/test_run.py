"""A run of `perturbation` trains one agent per seed on a game that has a known score."""

import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments.perturbation.run import Perturbations


def test_every_seed_is_one_network_that_learns_the_game_alone() -> None:
    parts = Perturbations.preset("quick", seed=4, seeds=2, scales=(0.1, 0.2)).parts()
    assert [part.config["seed"] for part in parts] == [4, 5]
    for part in parts:
        assert part.config["arm"] == "single"
        assert part.config["games"] == part.config["schedule"] == ["minatar/breakout"]
        assert tuple(part.config["noise"]["scales"]) == (0.1, 0.2)


def test_a_game_without_a_known_score_is_refused() -> None:
    with pytest.raises(RunError, match="--game: no human score is known for 'Tetris'"):
        Perturbations.preset("quick", game="Tetris")
