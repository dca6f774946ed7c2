"""What is learned and what is kept are drawn side by side, game by game."""

from pathlib import Path
from typing import Any

import pytest
from support.game_runs import ARMS, make_games, make_gated_games

from ewc_paper.experiments.games.data import read_networks
from ewc_paper.experiments.games.plasticity import HIGHEST, draw_plasticity
from ewc_paper.experiments.games.skill import References
from ewc_paper.figures.names import ARM_LABELS


def points(ax: Any, marker: str, size: float = 5.5) -> list[tuple[float, int]]:
    """The large points of an arm, as skill and row."""
    found = [line for line in ax.lines if line.get_marker() == marker]
    large = [line for line in found if line.get_markersize() == size]
    return [(float(line.get_xdata()[0]), round(line.get_ydata()[0])) for line in large]


def test_each_moment_has_a_panel_with_the_mean_skill_of_every_arm(
    tmp_path: Path, drawn: Any
) -> None:
    networks = read_networks(make_games(tmp_path))
    draw_plasticity(networks, References(networks), tmp_path / "plasticity.png")
    first, before, end = drawn.panels["plasticity"]
    assert [ax.get_title().partition(":")[0] for ax in (first, before)] == ["learned", "kept"]
    assert points(first, "^") == [(pytest.approx(1.0), 0), (pytest.approx(1.0), 1)]
    assert points(before, "^") == [(pytest.approx(0.25), 0), (pytest.approx(1.0), 1)]
    assert points(end, "^") == [(pytest.approx(1.0), 0), (pytest.approx(0.5), 1)]
    assert points(end, "s") == [(pytest.approx(1.0), 0), (pytest.approx(1.0), 1)]
    assert drawn.legends["plasticity"] == [ARM_LABELS[arm] for arm in ARMS]
    assert [label.get_text() for label in first.get_yticklabels()] == ["Pong", "Crazy Climber"]


@pytest.mark.parametrize("visits", [1, 2])
def test_the_legend_fits_into_the_figure(tmp_path: Path, drawn: Any, visits: int) -> None:
    networks = read_networks(make_gated_games(tmp_path, ["Pong", "Krull"], visits))
    draw_plasticity(networks, References(networks), tmp_path / "plasticity.png")
    figure = drawn.panels["plasticity"][0].get_figure(root=True)
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_undefined_skills_are_marked_and_large_ones_stay_in_the_figure(
    tmp_path: Path, drawn: Any
) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        if one.arm == "single" and one.games == ["Pong"]:
            one.tests[1]["scores"]["Pong"] = [-1.0, 1.0]
        if one.arm == "plain":
            one.tests[2]["scores"]["CrazyClimber"] = [1e6]
    draw_plasticity(networks, References(networks), tmp_path / "plasticity.png")
    first = drawn.panels["plasticity"][0]
    assert len([line for line in first.lines if line.get_marker() == "x"]) == 3  # arms
    assert points(first, "^") == [(HIGHEST, 1)]


def test_only_moments_that_were_reached_are_drawn(tmp_path: Path, drawn: Any) -> None:
    networks = read_networks(make_games(tmp_path))
    for one in networks:
        del one.tests[2:]
    draw_plasticity(networks, References(networks), tmp_path / "plasticity.png")
    assert len(drawn.panels["plasticity"]) == 1
    for one in networks:
        del one.tests[1:]
    draw_plasticity(networks, References(networks), tmp_path / "begun.png")
