"""What a run of games has measured: totals, skill, and contexts that were recognized."""

import math
from pathlib import Path

import numpy as np
import pytest
from support.games import STEPS, make_games, write_network

from ewc_paper.experiments.games.data import (
    Estimate,
    Network,
    References,
    average,
    ceiling,
    clipped_total,
    continual_networks,
    curves,
    estimate,
    first_skills,
    kept,
    later_tests,
    mean_skill,
    moments,
    read_networks,
    recognition,
    recognized_in_tests,
    revisits,
    score_curve,
    second_half_total,
    skill_in,
    skills,
    total,
    total_or_nan,
    total_skill,
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
    assert moments(network, "Pong") == {"first visit": 1, "before second": 3, "at the end": 4}
    assert moments(network, "CrazyClimber") == {
        "first visit": 2,
        "before second": 2,
        "at the end": 4,
    }
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


def network(arm: str, tests: list[list[float]], seed: int = 0, visits: int = 2) -> Network:
    """A network of one game, with the scores of its tests."""
    rows = [{"step": STEPS * number, "scores": {"Pong": one}} for number, one in enumerate(tests)]
    schedule = ["Pong"] * visits if arm != "random" else []
    return Network(Path(), arm, seed, ["Pong"], schedule, {}, rows, [])


RANDOM = [network("random", [[9.0, 11.0]]), network("random", [[8.0, 12.0]], seed=1)]
SINGLE = network("single", [[0.0, 0.0], [29.0, 31.0], [109.0, 111.0]])


def test_an_estimate_is_the_mean_and_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(5, 2, 1000)
    mean, error = estimate(values)
    assert mean == pytest.approx(np.mean(values))
    assert error == pytest.approx(2 / 1000**0.5, rel=0.1)
    assert estimate([3.0]) == (3.0, math.inf)


def test_the_error_of_an_average_falls_with_the_number_of_seeds() -> None:
    assert average([Estimate(1.0, 3.0), Estimate(3.0, 4.0)]) == (2.0, 2.5)


def test_random_players_of_all_seeds_are_pooled() -> None:
    pooled = References(RANDOM).random("Pong")
    assert pooled == estimate([9.0, 11.0, 8.0, 12.0])
    assert References(RANDOM).random("Krull") is None


def test_skill_is_relative_to_the_own_network_after_as_many_visits() -> None:
    references = References([*RANDOM, SINGLE])
    assert references.complete
    assert references.skill("Pong", 0, 1, 10.0) == 0
    assert references.skill("Pong", 0, 1, 30.0) == 1
    assert references.skill("Pong", 0, 2, 30.0) == pytest.approx(0.2)
    assert references.skill("Pong", 0, 1, 0.0) == pytest.approx(-0.5)  # worse than random
    assert references.skill("Pong", 0, 1, 50.0) == 2  # not clipped here


def test_skill_needs_both_references() -> None:
    references = References([*RANDOM, SINGLE])
    assert references.skill("Pong", 1, 1, 30.0) is None  # a seed without a network of its own
    assert references.skill("Pong", 0, 3, 30.0) is None  # it has not come so far
    assert References(RANDOM).skill("Pong", 0, 1, 30.0) is None
    assert References([SINGLE]).skill("Pong", 0, 1, 30.0) is None
    assert not References(RANDOM).complete
    assert not References([SINGLE]).complete


@pytest.mark.parametrize(
    ("own", "is_clear"),
    [
        ([20.0, 20.0], True),
        ([10.0, 10.0], False),
        ([5.0, 5.0], False),
        ([11.0, 29.0], False),  # 20 ± 9
        ([16.0, 24.0], True),  # 20 ± 4, and random is 10 ± 0.9
        ([12.7, 12.7], True),  # 2.7 above random: more than twice 1.29
        ([12.5, 12.5], False),  # less than twice it
        ([1000.0], False),  # the error of one episode is unknown
    ],
)
def test_there_is_no_skill_where_the_own_network_is_not_clearly_above_random(
    own: list[float], is_clear: bool
) -> None:
    random = network("random", [[10 + 3 * 1.29 / 3, 10 - 3 * 1.29 / 3]])  # 10 ± 1.29
    references = References([random, network("single", [[0.0, 0.0], own])])
    assert (references.skill("Pong", 0, 1, 10.0) is not None) == is_clear


def plain_network(tmp_path: Path, seed: int = 0) -> tuple[Network, References]:
    networks = read_networks(make_games(tmp_path))
    (found,) = [one for one in networks if one.arm == "plain" and one.seed == seed]
    return found, References(networks)


def test_skills_are_of_the_games_trained_so_far(tmp_path: Path) -> None:
    plain, references = plain_network(tmp_path)
    assert skills(plain, 0, references) == {}
    assert skills(plain, 1, references) == pytest.approx({"Pong": 0.9 / 0.95})
    after_two = {"Pong": 0.45 / 0.95, "CrazyClimber": 0.9 / 0.95}
    assert skills(plain, 2, references) == pytest.approx(after_two)
    assert skill_in(plain, "Pong", 3, references) == pytest.approx(0.225 / 0.95)
    first = dict.fromkeys(("Pong", "CrazyClimber"), 0.9 / 0.95)
    assert first_skills(plain, references) == pytest.approx(first)
    del plain.tests[2:]
    assert first_skills(plain, references).keys() == {"Pong"}


def test_skills_are_clipped_from_above_and_undefined_ones_left_out() -> None:
    found = {"Pong": 3.0, "Krull": -0.5, "Boxing": None}
    assert total_skill(found) == 0.5
    assert mean_skill(found) == 0.25
    assert total_skill({}) == 0  # nothing was trained yet
    assert total_skill({"Pong": None}) is mean_skill({"Pong": None}) is mean_skill({}) is None


def test_a_total_that_is_undefined_is_not_drawn(tmp_path: Path) -> None:
    plain, references = plain_network(tmp_path, seed=1)
    assert total_or_nan(plain, 1, references) == 1
    assert math.isnan(total_or_nan(plain, 1, References([])))
    assert total_or_nan(plain, 0, References([])) == 0


def test_kept_is_the_skill_on_return_over_the_skill_when_left(tmp_path: Path) -> None:
    plain, references = plain_network(tmp_path)
    (pong,) = revisits(plain)
    assert kept(plain, pong, references) == pytest.approx(0.25)  # two segments at a half each


@pytest.mark.parametrize(("left", "counts"), [(0.26, True), (0.24, False), (-1.0, False)])
def test_a_game_left_with_little_skill_has_nothing_to_keep(
    left: float, counts: bool, tmp_path: Path
) -> None:
    plain, references = plain_network(tmp_path)
    (pong,) = revisits(plain)
    plain.tests[pong.left]["scores"]["Pong"] = [95.0 * left]
    assert (kept(plain, pong, references) is not None) == counts
    assert kept(plain, pong, References([])) is None


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
