"""The table by game has scores and skills at the moments that matter."""

from pathlib import Path

from support.game_runs import make_games
from support.views import as_text

from ewc_paper.experiments.games.by_game import by_game
from ewc_paper.experiments.games.data import Network, read_networks
from ewc_paper.experiments.games.summary import summary


def rows_of(networks: list[Network]) -> list[list[str]]:
    lines = as_text(by_game(networks)).splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]


def test_every_game_has_its_references_and_the_score_and_skill_of_each_arm(tmp_path: Path) -> None:
    rows = rows_of(read_networks(make_games(tmp_path)))
    assert [row[:2] for row in rows] == [
        ["Pong", "first visit"],
        ["", "before 2nd"],
        ["", "at the end"],
        ["Crazy Climber", "first visit"],
        ["", "before 2nd"],
        ["", "at the end"],
    ]
    first, before, end = rows[:3]
    # Levels of 90 and 100 with the two seeds; the game's own network has 95 ± 0.95 with each.
    assert first[2:4] == ["0.00 ± 0.07", "95.0 ± 0.67"]
    assert first[4:] == ["95.0 (1.00)"] * 3
    assert before[4:] == ["23.8 (0.25)", "95.0 (1.00)", "60.8 (0.64)"]
    assert end[4] == "95.0 (1.00)"


def test_undefined_skills_are_marked_and_counted(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    own = {one.seed: one for one in networks if one.arm == "single" and one.games == ["Pong"]}
    own[0].tests[1]["scores"]["Pong"] = [-1.0, 1.0]
    assert rows_of(networks)[0][4] == "95.0 (1.05, 1 of 2)"  # of seed 1
    own[1].tests[1]["scores"]["Pong"] = [-1.0, 1.0]
    assert rows_of(networks)[0][4] == "95.0 (–)"


def test_moments_that_were_not_reached_have_no_row(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        del one.tests[3:]
    assert [row[1] for row in rows_of(networks)] == ["first visit", "first visit", "before 2nd"]
    assert summary(networks).row_count > 0
