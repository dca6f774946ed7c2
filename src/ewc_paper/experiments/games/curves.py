"""Panels A and B of the paper's figure on Atari, and the scores per game."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ewc_paper.experiments.games.data import (
    Network,
    ceiling,
    continual_networks,
    score_curve,
    total_curves,
)
from ewc_paper.figures.names import ARM_LABELS, game_name
from ewc_paper.figures.seeds import plot_band
from ewc_paper.figures.style import (
    RED,
    axes,
    line_style,
    marker_style,
    save,
    tidy,
    use_short_numbers,
)
from ewc_paper.games.arms import PROTECTED


def draw_schedule(networks: Sequence[Network], file: Path) -> Path:
    """Draw which game is trained when; with EWC, a point where a segment ends in protection."""
    network = networks[0]
    steps, start = network.settings["segment_steps"], network.settings["ewc_start"]
    ax = axes(6.4, 1.2 + 0.3 * len(network.games))
    protected = any(one.arm in PROTECTED for one in networks)
    trained = dict.fromkeys(network.games, 0)
    for segment, game in enumerate(network.schedule):
        row = network.games.index(game)
        ax.barh(row, steps, left=segment * steps, height=0.5, color="black")
        trained[game] += steps
        if protected and trained[game] >= start:
            place = ((segment + 1) * steps, row)
            ax.plot(*place, "o", color=RED, markersize=5, clip_on=False, zorder=3)
    ax.set_yticks(range(len(network.games)), [game_name(game) for game in network.games])
    ax.set_ylim(len(network.games) - 0.5, -0.5)
    ax.set_xlim(0, len(network.schedule) * steps)
    use_short_numbers(ax)
    ax.set_xlabel("agent steps")
    if protected:
        ax.set_title("red point: from here on, EWC protects the game", fontsize=9, loc="left")
    return save(ax, file)


def draw_totals(networks: Sequence[Network], file: Path) -> Path:
    """Draw the total normalized score over training, with one network per game as ceiling."""
    ax = axes(6.4, 3.8)
    arms = continual_networks(networks)
    learners = next(iter(arms.values()))
    for arm in _arms(networks):
        if arm == "single":
            _plot_ceiling(ax, networks, learners)
        else:
            plot_band(ax, *total_curves(arms[arm]), label=ARM_LABELS[arm], **marker_style(arm))
    _mark_segments(ax, learners[0])
    top = 1.03 * len(learners[0].games)  # a marker at the highest total is drawn whole
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]), top=top)
    use_short_numbers(ax)
    ax.set_xlabel("agent steps; tested on all games after each segment")
    ax.set_ylabel(f"total normalized score of {len(learners[0].games)} games")
    ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    return save(ax, file)


def _arms(networks: Sequence[Network]) -> list[str]:
    """Return the arms in the order of the networks, which is that of the options."""
    return list(dict.fromkeys(network.arm for network in networks))


def _plot_ceiling(ax: Axes, networks: Sequence[Network], learners: Sequence[Network]) -> None:
    limits = [limit for one in learners if (limit := ceiling(networks, one)) is not None]
    if limits:
        steps = np.arange(len(limits[0])) * learners[0].settings["segment_steps"]
        plot_band(ax, steps.tolist(), limits, label=ARM_LABELS["single"], **line_style("single"))


def _mark_segments(ax: Axes, network: Network) -> None:
    """Draw a dotted line where a segment ends."""
    for segment in range(1, len(network.schedule)):
        place = segment * network.settings["segment_steps"]
        ax.axvline(place, color="0.85", linewidth=0.8, linestyle=":", zorder=0)


def draw_by_game(networks: Sequence[Network], file: Path) -> Path:
    """Draw each game's raw score over the steps in it; a vertical drop is what was forgotten."""
    games, arms = sorted({game for one in networks for game in one.games}), _arms(networks)
    columns = min(len(games), 4)
    rows = -(-len(games) // columns)
    _, grid = plt.subplots(
        rows,
        columns,
        figsize=(max(2.4 * columns, 5.2), 0.7 + 2.1 * rows),
        layout="constrained",
        squeeze=False,
    )
    for ax, game in zip(grid.flat, games, strict=False):
        for arm in arms:
            curves = [
                score_curve(one, game) for one in networks if one.arm == arm and game in one.games
            ]
            _plot_curves(ax, arm, curves)
        tidy(ax).set_title(game_name(game), fontsize=9)
        use_short_numbers(ax)
        ax.tick_params(labelsize=8)
    for ax in grid.flat[len(games) :]:
        ax.set_visible(False)
    figure = grid[0, 0].get_figure(root=True)
    figure.legend(
        [Line2D([], [], **line_style(arm)) for arm in arms],
        [ARM_LABELS[arm] for arm in arms],
        loc="outside upper left",
        frameon=False,
        ncols=len(arms) if columns > 2 else 2,
        fontsize=9,
    )
    figure.supxlabel("agent steps in the game", fontsize=9)
    figure.supylabel("score", fontsize=9)
    return save(grid[0, 0], file)


def _plot_curves(ax: Axes, arm: str, curves: list[tuple[list[float], list[float]]]) -> None:
    if not curves:
        return
    reached = min(len(steps) for steps, _ in curves)
    steps = np.mean([steps[:reached] for steps, _ in curves], axis=0)
    values = [values[:reached] for _, values in curves]
    plot_band(ax, steps.tolist(), values, **line_style(arm))
