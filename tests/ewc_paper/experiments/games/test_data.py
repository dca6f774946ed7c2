"""The numbers of a run of games are those of its rows."""

from pathlib import Path

import pytest
from support.game_runs import STEPS, make_games, write_network

from ewc_paper.experiments.games.data import (
    ceiling,
    clipped_total,
    continual_networks,
    read_networks,
    revisits,
    score_curve,
    second_half_total,
    total,
    total_curves,
    total_learned,
)
from ewc_paper.runs.directory import RunDirectory

GAMES = ["Pong", "CrazyClimber"]  # trained in the order Pong, Crazy Climber, Crazy Climber, Pong


def test_scores_are_clipped_from_above_before_they_are_summed() -> None:
    assert clipped_total([]) == 0
    assert clipped_total([2.0, -2.0, 0.5]) == -0.5


def test_networks_that_learn_one_game_alone_are_left_out(tmp_path: Path) -> None:
    arms = continual_networks(read_networks(make_games(tmp_path)))
    assert {arm: len(networks) for arm, networks in arms.items()} == {
        "plain": 2,
        "ewc-labels": 2,
        "ewc-fmn": 2,
    }


def test_the_total_is_clipped_at_one_per_game_and_not_below() -> None:
    assert total({"normalized": {"Pong": 3.0, "Krull": 0.25, "Boxing": -0.5}}) == 0.75


def test_totals_are_those_of_the_tests(tmp_path: Path) -> None:
    plain = [one for one in read_networks(make_games(tmp_path)) if one.arm == "plain"]
    steps, values = total_curves(plain)
    assert steps == [0, STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]
    assert values[0] == pytest.approx([0, 0.9, 1.35, 0.9 * 1.25, 0.9 * 1.5])
    assert values[1] == pytest.approx([0, 1.0, 1.5, 1.25, 1.5])
    assert second_half_total(plain[0]) == pytest.approx(0.9 * (1.25 + 1.5) / 2)


def test_the_ceiling_has_trained_each_game_as_long_as_the_schedule(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    assert ceiling(networks, networks[0]) == pytest.approx([0, 0.95, 1.9, 1.9, 1.9])
    assert ceiling(networks[:1], networks[0]) is None


def test_a_game_returns_only_after_another_was_trained(tmp_path: Path) -> None:
    (pong,) = revisits(read_networks(make_games(tmp_path))[0])
    assert pong.game == "Pong"  # Crazy Climber came twice in a row
    assert pong.kept == pytest.approx(0.25)  # two segments at one half each
    assert (pong.agreement, pong.regret) == (0.5, 0.5)


def test_what_is_kept_is_counted_from_the_untrained_network(tmp_path: Path) -> None:
    """A score below a random player's, as in episodes that are cut short, can be kept too."""
    (network,) = [
        one for one in read_networks(make_games(tmp_path)) if one.arm == "plain" and one.seed == 0
    ]
    for test in network.tests:
        test["normalized"] = {game: score - 2 for game, score in test["normalized"].items()}
    (pong,) = revisits(network)
    assert pong.kept == pytest.approx(0.25)


def test_what_was_learned_counts_one_if_played_as_by_a_network_of_its_own(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    (plain,) = [one for one in networks if one.arm == "plain" and one.seed == 0]
    assert total_learned(networks, plain) == pytest.approx(0.9 / 0.95 + 0.45 / 0.95)
    for test in plain.tests:
        test["normalized"]["Pong"] += 1.0
    assert total_learned(networks, plain) == pytest.approx(1 + 0.45 / 0.95)
    assert total_learned([plain], plain) is None
    for network in networks:
        for test in network.tests:
            test["normalized"] = dict.fromkeys(test["normalized"], 0.5)
    assert total_learned(networks, plain) is None  # nobody has learned anything


def test_a_game_that_was_not_learned_has_nothing_to_keep(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    write_network(run, "plain", "plain", 0, GAMES, ["Pong", "CrazyClimber", "Pong"], 1.0, 0.01)
    (found,) = revisits(read_networks(run)[0])
    assert found.kept is None


def test_forgetting_is_a_drop_at_equal_steps_in_the_game(tmp_path: Path) -> None:
    steps, values = score_curve(read_networks(make_games(tmp_path))[0], "Pong")
    assert steps == [0, STEPS, STEPS, 2 * STEPS, 2 * STEPS]
    assert values == pytest.approx([0, 90, 22.5, 90, 90])
