"""A network on games is described by its arm, its games and the settings of its agent."""

from typing import Any

import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments.games.run import Games
from ewc_paper.experiments.perturbation.run import Perturbations
from ewc_paper.experiments.playing import check_game, check_one_world, make_part
from ewc_paper.games.arms import ARMS
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.experience import replay_bytes


def test_a_part_has_the_settings_that_the_experiment_offers() -> None:
    part = Games.preset("quick", lr=0.5).part_config("plain", 3, ["a", "b"], ["b", "a", "b"])
    assert {**part, "settings": {}} == {
        "arm": "plain",
        "seed": 3,
        "games": ["a", "b"],
        "schedule": ["b", "a", "b"],
        "settings": {},
    }
    assert AgentConfig(**part["settings"]).lr == 0.5
    alone = Perturbations.preset("quick").part_config("single", 0, ["a"], ["a"])
    assert alone["settings"].keys() < part["settings"].keys()


@pytest.mark.parametrize(
    ("change", "arms"),
    [
        ({"strength": 7.0}, {"ewc-labels", "ewc-fmn", "ewc-gates-labels", "ewc-gates-fmn"}),
        ({"filter_gates": 0.1}, {"gates", "ewc-gates-labels", "ewc-gates-fmn"}),
        ({"usual": 0.1}, {"ewc-fmn", "ewc-gates-fmn"}),
        ({"levels": 9}, {"ewc-fmn", "ewc-gates-fmn"}),
        ({"fresh_optimizer": False}, set(ARMS)),
    ],
)
def test_only_the_arms_that_use_an_option_depend_on_it(
    change: dict[str, Any], arms: set[str]
) -> None:
    before, after = (
        {arm: Games.preset("quick", **given).part_config(arm, 0, ["a"], ["a"]) for arm in ARMS}
        for given in ({}, change)
    )
    assert {arm for arm in ARMS if before[arm] != after[arm]} == arms


def test_a_part_knows_the_disk_space_and_the_files_of_its_replay_memories() -> None:
    game = "minatar/breakout"
    config = Games.preset("quick").part_config("plain", 0, [game], [game, game])
    part = make_part("name", config, lambda config: None)  # type: ignore[arg-type,return-value]
    assert part.disk_bytes == replay_bytes(AgentConfig(**config["settings"]), [game, game]) > 0
    assert part.temporary_files == ("replay-*.rows",)


@pytest.mark.parametrize("games", [("Pong", "Boxing"), ("minatar/breakout",), ()])
def test_games_of_one_world_are_taken(games: tuple[str, ...]) -> None:
    check_one_world(games)


def test_games_of_two_worlds_and_unknown_games_are_refused() -> None:
    with pytest.raises(RunError, match="got Pong minatar/breakout"):
        check_one_world(("Pong", "minatar/breakout"))
    with pytest.raises(RunError, match=r"^--game: .*'Pnog'"):
        check_game("Pnog", "--game")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon_start": 9, "epsilon_end": 8}, "--epsilon-end must be at least"),
        ({"n_step": 100, "max_episode_steps": 100}, "--n-step must be below 100"),
        ({"min_history": 40_000}, "--min-history must be at most 39976"),
    ],
)
@pytest.mark.parametrize("experiment", [Games, Perturbations])
def test_settings_under_which_nothing_is_learned_are_refused(
    experiment: Any, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RunError, match=said):
        experiment.preset("laptop", **changes)
