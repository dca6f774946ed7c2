"""A network on games is described by its arm, its games and the settings of its agent."""

from typing import Any

import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments.games.run import Games
from ewc_paper.experiments.perturbation import Perturbations
from ewc_paper.experiments.playing import (
    ContextUse,
    check_game,
    check_one_world,
    make_part,
    match_contexts,
)
from ewc_paper.games.config import ARMS, AgentConfig
from ewc_paper.games.replay import replay_bytes


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
        ({"kronecker_strength": 7.0}, {name for name in ARMS if "kronecker" in name}),
        ({"ewc_start": 7}, {name for name in ARMS if "ewc" in name}),
        ({"filter_gates": 0.1}, {name for name in ARMS if "gates" in name}),
        ({"usual": 0.1}, {name for name, arm in ARMS.items() if arm.recognizes}),
        ({"levels": 9}, {name for name, arm in ARMS.items() if arm.recognizes}),
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
    with pytest.raises(RunError, match=r"^--game: .*Pnog"):
        check_game("Pnog", "--game")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon_start": 9, "epsilon_end": 8}, "--epsilon-end must be at least"),
        (
            {"n_step": 100, "max_episode_steps": 100},
            "--max-episode-steps = 100 leaves each copy 100 steps",
        ),
        ({"min_history": 40_000}, "--min-history must be at most 39976"),
    ],
)
@pytest.mark.parametrize("experiment", [Games, Perturbations])
def test_settings_under_which_nothing_is_learned_are_refused(
    experiment: Any, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RunError, match=said):
        experiment.preset("laptop", **changes)


def test_steps_in_contexts_of_other_games_are_wrong() -> None:
    uses = [
        ContextUse(0, "Pong", 60),
        ContextUse(0, "Krull", 30),
        ContextUse(0, "Pong", 10),
        ContextUse(1, "Krull", 95),
        ContextUse(1, "Pong", 5),
    ]
    match = match_contexts(uses)
    assert match is not None
    assert match.game_of == {0: "Pong", 1: "Krull"}
    assert match.correct == pytest.approx(1 - (30 + 5) / 200)


def test_a_game_may_have_several_contexts() -> None:
    match = match_contexts([ContextUse(0, "Pong", 2), ContextUse(1, "Pong", 1)])
    assert match is not None
    assert match.game_of == {0: "Pong", 1: "Pong"}
    assert match.correct == 1.0


def test_without_steps_there_is_nothing_to_match() -> None:
    assert match_contexts([]) is None
