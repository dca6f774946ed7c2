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
    curves,
    score_curve,
    total,
)
from ewc_paper.experiments.games.skill import References, defined, skills, total_or_nan
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
from ewc_paper.games.arms import PROTECTED, RANDOM, SINGLE


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


def draw_totals(networks: Sequence[Network], references: References, file: Path) -> Path:
    """Draw the total skill over training and beside it the total normalized score.

    One network per game is the ceiling of both. Without skill, the second panel stands alone.
    """
    panels = ([_plot_skills] if references.complete else []) + [_plot_normalized]
    figure, grid = plt.subplots(
        1, len(panels), figsize=(1.6 + 4.8 * len(panels), 3.8), layout="constrained", squeeze=False
    )
    learners = next(iter(continual_networks(networks).values()))
    for ax, plot in zip(grid.flat, panels, strict=True):
        plot(tidy(ax), networks, references)
        _mark_segments(ax, learners[0])
        top = 1.03 * len(learners[0].games)  # a marker at the highest total is drawn whole
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]), top=top)
        use_short_numbers(ax)
    figure.supxlabel("agent steps; tested on all games after each segment", fontsize=10)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    columns = 2 if len(panels) == 1 else 4
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=columns)
    return save(grid[0, 0], file)


def _plot_skills(ax: Axes, networks: Sequence[Network], references: References) -> None:
    """Plot the total skill; a network per game has 1 in each game trained so far."""
    arms = continual_networks(networks)
    learners = next(iter(arms.values()))
    for arm in _arms(networks):
        if arm == SINGLE:
            most = curves(learners, lambda one, test: len(defined(skills(one, test, references))))
            plot_band(ax, *most, label=ARM_LABELS[arm], **line_style(arm))
        elif arm in arms:
            found = curves(arms[arm], lambda one, test: total_or_nan(one, test, references))
            plot_band(ax, *found, label=ARM_LABELS[arm], **marker_style(arm))
    ax.set_ylabel(f"total skill in {len(learners[0].games)} games")
    ends = [skills(one, len(one.schedule), references) for one in learners if one.finished]
    missing = sum(len(end) - len(defined(end)) for end in ends)
    if missing:
        everything = sum(len(end) for end in ends)
        text = f"{missing} of {everything} left out at the end: not learned even alone"
        ax.set_title(text, fontsize=9, loc="left")


def _plot_normalized(ax: Axes, networks: Sequence[Network], references: References) -> None:
    """Plot the total normalized score, as in the paper."""
    arms = continual_networks(networks)
    learners = next(iter(arms.values()))
    for arm in _arms(networks):
        if arm == SINGLE:
            _plot_ceiling(ax, networks, learners)
        elif arm in arms:
            found = curves(arms[arm], lambda one, test: total(one.tests[test]))
            plot_band(ax, *found, label=ARM_LABELS[arm], **marker_style(arm))
    ax.set_ylabel(f"total normalized score of {len(learners[0].games)} games")


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
    """Draw each game's raw score over the steps in it; a vertical drop is what was forgotten.

    Skill is the height between the lines of the random player and of the game's own network.
    """
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
            playing = [one for one in networks if one.arm == arm and game in one.games]
            if arm == RANDOM and playing:
                scores = [one.tests[0]["scores"][game] for one in playing]
                ax.axhline(float(np.mean(np.concatenate(scores))), **line_style(arm))
            else:
                _plot_scores(ax, arm, [score_curve(one, game) for one in playing])
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


def _plot_scores(ax: Axes, arm: str, scores: list[tuple[list[float], list[float]]]) -> None:
    if not scores:
        return
    reached = min(len(steps) for steps, _ in scores)
    steps = np.mean([steps[:reached] for steps, _ in scores], axis=0)
    values = [values[:reached] for _, values in scores]
    plot_band(ax, steps.tolist(), values, **line_style(arm))
