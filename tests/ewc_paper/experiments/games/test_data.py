"""The numbers of a run of games are those of its rows."""

from pathlib import Path

import pytest
from support.game_runs import STEPS, make_games, write_network

from ewc_paper.experiments.games.data import (
    ceiling,
    clipped_total,
    continual_networks,
    curves,
    later_tests,
    moments,
    read_networks,
    revisits,
    score_curve,
    second_half_total,
    total,
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
    steps, values = curves(plain, lambda one, test: total(one.tests[test]))
    assert steps == [0, STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]
    assert list(values) == ["seed 0", "seed 1"]
    assert values["seed 0"] == pytest.approx([0, 0.9, 1.35, 0.9 * 1.25, 0.9 * 1.5])
    assert values["seed 1"] == pytest.approx([0, 1.0, 1.5, 1.25, 1.5])
    assert later_tests(plain[0]) == [3, 4]
    assert second_half_total(plain[0]) == pytest.approx(0.9 * (1.25 + 1.5) / 2)


def test_the_ceiling_has_trained_each_game_as_long_as_the_schedule(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    assert ceiling(networks, networks[0]) == pytest.approx([0, 0.95, 1.9, 1.9, 1.9])
    assert ceiling(networks[:1], networks[0]) is None


def test_a_game_returns_only_after_another_was_trained(tmp_path: Path) -> None:
    (pong,) = revisits(read_networks(make_games(tmp_path))[0])
    assert pong.game == "Pong"  # Crazy Climber came twice in a row
    assert (pong.left, pong.back) == (1, 3)
    assert (pong.agreement, pong.regret) == (0.5, 0.5)


def test_a_game_is_looked_at_after_its_first_visit_before_its_second_and_at_the_end(
    tmp_path: Path,
) -> None:
    network = read_networks(make_games(tmp_path))[0]
    assert moments(network, "Pong") == {"first visit": 1, "before 2nd": 3, "at the end": 4}
    assert moments(network, "CrazyClimber") == {"first visit": 2, "before 2nd": 2, "at the end": 4}
    del network.tests[3:]
    assert moments(network, "Pong") == {"first visit": 1}
    assert moments(network, "Krull") == {}


def test_forgetting_is_a_drop_at_equal_steps_in_the_game(tmp_path: Path) -> None:
    steps, values = score_curve(read_networks(make_games(tmp_path))[0], "Pong")
    assert steps == [0, STEPS, STEPS, 2 * STEPS, 2 * STEPS]
    assert values == pytest.approx([0, 90, 22.5, 90, 90])


def test_the_same_seed_of_two_sets_of_games_is_two_lines(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    for number, games in enumerate((["Pong", "Krull"], ["Pong", "Boxing"])):
        write_network(run, f"plain-set{number}-seed7", "plain", 7, games, games, kept=0.5)
    _, values = curves(read_networks(run), lambda one, test: total(one.tests[test]))
    assert list(values) == ["set 0, seed 7", "set 1, seed 7"]
