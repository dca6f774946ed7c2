"""The summary compares the arms with plain training, and says what is left out of it."""

from pathlib import Path

from support.game_runs import make_games
from support.views import as_text

from ewc_paper.experiments.games.data import Network, read_networks
from ewc_paper.experiments.games.summary import summary


def rows_of(networks: list[Network]) -> dict[str, list[str]]:
    lines = as_text(summary(networks)).splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    return {row[0]: row[1:] for row in cells if row}


def test_the_arms_are_compared_with_plain_training(tmp_path: Path) -> None:
    rows = rows_of(read_networks(make_games(tmp_path)))
    # plain, seed 0: 0.9 and 0.45 of 0.95; seed 1: 1 and 0.5 of 0.95, clipped at 1
    assert rows["skill, end"] == ["1.47 ± 0.07", "1.95 ± 0.07", "1.77 ± 0.10", "2.00 ± 0.00"]
    assert rows["end / plain"] == ["1.00", "1.32", "1.20", ""]
    assert rows["end, left out"] == ["0 of 4"] * 3 + [""]
    assert rows["end from 0"] == [*rows["skill, end"][:3], ""]
    assert rows["second visits"][0] == "1.35 ± 0.07"
    assert rows["second, left out"] == ["0 of 8"] * 3 + [""]
    assert rows["first visits"] == ["0.97 ± 0.04"] * 3 + [""]
    assert rows["first / plain"] == ["1.00"] * 3 + [""]
    assert rows["kept"] == ["25%", "100%", "64%", ""]
    assert rows["least kept"] == ["25%", "100%", "64%", ""]
    assert rows["kept, returns"] == ["2 of 2"] * 3 + [""]
    assert rows["normalized, end"] == ["1.43 ± 0.11", "1.90 ± 0.14", "1.71 ± 0.13", "1.90 ± 0.00"]
    assert rows["norm. end / plain"] == ["1.00", "1.33", "1.20", ""]
    assert rows["normalized, 2nd half"][0] == "1.31 ± 0.10"
    assert rows["norm. 2nd / plain"] == ["1.00", "1.45", "1.25", ""]
    assert rows["same action"] == ["50%", "100%", "80%", ""]
    assert rows["regret of Q"] == ["0.500", "0.000", "0.200", ""]
    assert (rows["recognized"][2], rows["contexts"][2]) == ("98.8%", "2.0")
    assert rows["recognized in tests"] == ["", "", "90.0%", ""]


def test_contexts_that_were_merged_do_not_count(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        one.tests[-1]["contexts"] = 3 + one.seed
    assert rows_of(networks)["contexts"][2] == "3.5"


def test_a_game_played_worse_than_at_random_lowers_one_total_and_not_the_other(
    tmp_path: Path,
) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        if one.arm == "plain":
            one.tests[-1]["scores"]["CrazyClimber"] = [-95.0, -95.0]  # a skill of -1
    rows = rows_of(networks)
    assert rows["skill, end"][:2] == ["-0.03 ± 0.04", "1.95 ± 0.07"]
    assert "end / plain" not in rows  # there is no ratio to less than nothing
    assert rows["end from 0"][:2] == ["0.97 ± 0.04", "1.95 ± 0.07"]
    assert rows["end from 0 / plain"][1] == "2.00"
    # The third test is as it was: 1.22 on average, where the fourth has -0.03 or 0.97.
    assert rows["second visits"][0] == "0.60 ± 0.05"
    assert rows["second from 0"][0] == "1.10 ± 0.05"


def test_games_that_nobody_learned_are_left_out_and_counted(tmp_path: Path) -> None:
    """The own network of seed 0 plays Pong like the random player after one visit."""
    networks = read_networks(make_games(tmp_path))
    (own,) = [one for one in networks if (one.arm, one.seed, one.games) == ("single", 0, ["Pong"])]
    own.tests[1]["scores"]["Pong"] = [-1.0, 1.5]
    rows = rows_of(networks)
    assert rows["first, left out"][0] == "1 of 4"
    assert rows["second, left out"][0] == "1 of 8"  # after the third segment
    assert rows["end, left out"][0] == "0 of 4"
    assert rows["kept, returns"][0] == "1 of 2"
    own.tests[2]["scores"]["Pong"] = [-1.0, 1.5]
    rows = rows_of(networks)
    assert rows["end, left out"][0] == "1 of 4"
    assert rows["skill, end"][3] == "1.50 ± 0.71"  # the most that can be had


def test_a_run_without_references_says_that_it_has_no_skill(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    assert "skill of 2 games" in as_text(summary(networks))
    for missing in ("random", "single"):
        rest = [one for one in networks if one.arm != missing]
        assert "needs the arms random and single" in " ".join(as_text(summary(rest)).split())
        rows = rows_of(rest)
        assert "kept" not in rows
        assert rows["normalized, end"][0] == "1.43 ± 0.11"


def test_a_run_that_has_not_finished_has_no_end_yet(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        if one.arm == "plain":
            del one.tests[3:]
    rows = rows_of(networks)
    assert rows["skill, end"][0] == rows["normalized, end"][0] == ""
    assert "end / plain" not in rows
    assert rows["first visits"][0] == "0.97 ± 0.04"
