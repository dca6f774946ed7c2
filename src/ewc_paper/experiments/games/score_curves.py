"""The raw score of each game over the steps in it, one panel per game."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from ewc_paper.experiments.games.data import Network, arms_of, score_curve
from ewc_paper.figures.names import ARM_LABELS, game_name
from ewc_paper.figures.panel import Level, Panel, Series
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.style import LOOKS, line_style, save, use_short_numbers
from ewc_paper.games.arms import RANDOM


def score_panels(networks: Sequence[Network]) -> list[Panel]:
    """Return each game's raw score over the steps in it; a vertical drop is what was forgotten.

    Skill is the height between the lines of the random player and of the game's own network.
    """
    games = sorted({game for one in networks for game in one.games})
    return [_panel(game, [one for one in networks if game in one.games]) for game in games]


def _panel(game: str, networks: Sequence[Network]) -> Panel:
    series, levels = [], []
    for arm in arms_of(networks):
        playing = [one for one in networks if one.arm == arm]
        if arm == RANDOM:
            scores = np.concatenate([one.tests[0]["scores"][game] for one in playing])
            levels.append(Level(ARM_LABELS[arm], LOOKS[arm], float(np.mean(scores))))
        else:
            series.append(_curve(arm, playing, game))
    return Panel(
        "agent steps in the game", "score", title=game_name(game), series=series, levels=levels
    )


def _curve(arm: str, networks: Sequence[Network], game: str) -> Series:
    """Return the scores of an arm as far as all its seeds have come."""
    found = {one.seed_name: score_curve(one, game) for one in networks}
    reached = min(len(steps) for steps, _ in found.values())
    steps = np.mean([steps[:reached] for steps, _ in found.values()], axis=0).tolist()
    values = {seed: values[:reached] for seed, (_, values) in found.items()}
    return Series(ARM_LABELS[arm], LOOKS[arm], steps, values)


def draw_scores(networks: Sequence[Network], file: Path) -> Path:
    """Draw the panels in a grid, with one legend for all."""
    panels, arms = score_panels(networks), arms_of(networks)
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(max(2.4 * columns, 5.2), 0.7 + 2.1 * rows),
        layout="constrained",
        squeeze=False,
    )
    for ax, panel in zip(grid.flat, panels, strict=False):
        plot_panel(ax, panel).set_title(panel.title, fontsize=9)
        ax.set(xlabel="", ylabel="")
        use_short_numbers(ax)
        ax.tick_params(labelsize=8)
    for ax in grid.flat[len(panels) :]:
        ax.set_visible(False)
    figure.legend(
        [Line2D([], [], **line_style(arm)) for arm in arms],
        [ARM_LABELS[arm] for arm in arms],
        loc="outside upper left",
        frameon=False,
        ncols=max(columns, 2),  # an entry is as wide as a panel
        fontsize=9,
    )
    figure.supxlabel(panels[0].x_label, fontsize=9)
    figure.supylabel(panels[0].y_label, fontsize=9)
    return save(grid[0, 0], file)
