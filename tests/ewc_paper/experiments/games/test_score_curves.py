"""Scores by game: a legend that looks like the lines, and the random player at its mean."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from support.game_runs import make_games, make_gated_games, write_network, write_random_player

from ewc_paper.experiments.games import score_curves
from ewc_paper.experiments.games.data import read_networks
from ewc_paper.runs.directory import RunDirectory


def look(line: Any) -> tuple[str, Any]:
    assert isinstance(line, Line2D)
    return to_hex(line.get_color()), line._unscaled_dash_pattern


def test_the_legend_looks_like_the_lines(tmp_path: Path, drawn: Any) -> None:
    score_curves.draw_scores(read_networks(make_games(tmp_path)), tmp_path / "games.png")
    for ax in drawn.panels["games"]:
        assert [look(line) for line in ax.lines] == [look(line) for line in drawn.handles]
    assert len({str(look(line)[1]) for line in drawn.handles}) == len(drawn.legends["games"])


@pytest.mark.parametrize("games", [1, 3, 4])
def test_the_legend_fits_into_the_figure(tmp_path: Path, drawn: Any, games: int) -> None:
    run = make_gated_games(tmp_path, ["Pong", "Krull", "Boxing", "Breakout"][:games])
    score_curves.draw_scores(read_networks(run), tmp_path / "games.png")
    figure = drawn.panels["games"][0].get_figure(root=True)
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_the_random_player_is_a_line_at_its_mean_score(tmp_path: Path, drawn: Any) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    write_network(run, "plain", "plain", 0, ["Pong"], ["Pong"], kept=0.5)
    write_random_player(run, "Pong", 0, [3.0])
    write_random_player(run, "Pong", 1, [6.0, 6.0])  # every episode counts the same
    score_curves.draw_scores(read_networks(run), tmp_path / "games.png")
    (ax,) = drawn.panels["games"]
    assert set(ax.lines[-1].get_ydata()) == {5.0}
