"""Totals and the schedule of a run of games, with arms in the order given."""

from pathlib import Path
from typing import Any

import pytest
from support.game_runs import ARMS, STEPS, make_games, write_network

from ewc_paper.experiments.games import curves, score_curves
from ewc_paper.experiments.games.data import read_networks
from ewc_paper.experiments.games.skill import References
from ewc_paper.figures.names import ARM_LABELS
from ewc_paper.runs.directory import RunDirectory

GAMES = ["Pong", "Krull"]


@pytest.mark.parametrize(("arm", "title", "points"), [("plain", "", 0), ("ewc-labels", "EWC", 3)])
def test_the_schedule_shows_protection_only_where_there_is_any(
    arm: str, title: str, points: int, tmp_path: Path, drawn: Any
) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    write_network(run, arm, arm, 0, GAMES, [*GAMES, "Pong"], kept=0.5)
    curves.draw_schedule(read_networks(run), tmp_path / "schedule.png")
    (ax,) = drawn.panels["schedule"]
    assert title in ax.get_title(loc="left")
    assert bool(title) == bool(ax.get_title(loc="left"))
    assert len(ax.lines) == points


def test_the_schedule_has_one_bar_per_segment(tmp_path: Path, drawn: Any) -> None:
    curves.draw_schedule(read_networks(make_games(tmp_path)), tmp_path / "schedule.png")
    (ax,) = drawn.panels["schedule"]
    bars = [(bar.get_x(), bar.get_y() + bar.get_height() / 2) for bar in ax.patches]
    assert bars == [(0, 0), (STEPS, 1), (2 * STEPS, 1), (3 * STEPS, 0)]


@pytest.mark.parametrize("arms", [("single", "ewc-fmn", "plain"), ("plain", "single", "ewc-fmn")])
def test_arms_are_in_the_order_given(arms: tuple[str, ...], tmp_path: Path, drawn: Any) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games", "arms": list(arms)})
    for arm in arms[::-1]:
        for name in GAMES if arm == "single" else ["all"]:
            own = [name] if arm == "single" else GAMES
            write_network(run, f"{arm}-{name}", arm, 0, own, own, kept=0.5)
    names = [ARM_LABELS[arm] for arm in arms]
    networks = read_networks(run)
    curves.draw_totals(networks, References(networks), tmp_path / "total.png")
    score_curves.draw_scores(networks, tmp_path / "games.png")
    assert drawn.legends == {"total": names, "games": names}


def test_the_total_skill_is_drawn_beside_the_normalized_score(tmp_path: Path, drawn: Any) -> None:
    networks = read_networks(make_games(tmp_path))
    curves.draw_totals(networks, References(networks), tmp_path / "total.png")
    skill, normalized = drawn.panels["total"]
    assert "total skill in 2 games" in skill.get_ylabel()
    assert "total normalized score" in normalized.get_ylabel()
    plain = [0, (0.9 / 0.95 + 1) / 2]  # of seed 0; clipped at 1 with seed 1
    assert skill.lines[0].get_ydata()[:2] == pytest.approx(plain)
    assert normalized.lines[0].get_ydata()[:2] == pytest.approx([0, 0.95])
    assert not skill.get_title(loc="left")
    own = next(line for line in skill.lines if line.get_label() == ARM_LABELS["single"])
    assert list(own.get_ydata()) == [0, 1, 2, 2, 2]  # games trained so far
    assert drawn.legends["total"] == [ARM_LABELS[arm] for arm in ARMS if arm != "random"]


def test_the_figure_says_how_many_games_are_left_out(tmp_path: Path, drawn: Any) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        if (one.arm, one.games) == ("single", ["Pong"]):
            one.tests[2]["scores"]["Pong"] = [-1.0, 1.0]
    curves.draw_totals(networks, References(networks), tmp_path / "total.png")
    skill, _ = drawn.panels["total"]
    assert skill.get_title(loc="left").startswith("2 of 4 left out at the end")


def test_without_a_random_player_the_normalized_score_stands_alone(
    tmp_path: Path, drawn: Any
) -> None:
    networks = [one for one in read_networks(make_games(tmp_path)) if one.arm != "random"]
    curves.draw_totals(networks, References(networks), tmp_path / "total.png")
    (ax,) = drawn.panels["total"]
    assert "total normalized score" in ax.get_ylabel()
