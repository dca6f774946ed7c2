"""What is learned beside what is kept: the skill in each game after its first visit and later.

A network that froze keeps everything, so the panels belong together.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ewc_paper.experiments.games.data import (
    BEFORE_SECOND,
    END,
    FIRST,
    MOMENTS,
    Network,
    continual_networks,
    moments,
)
from ewc_paper.experiments.games.skill import References, skill_in
from ewc_paper.figures.names import ARM_LABELS, game_name
from ewc_paper.figures.style import LOOKS, line_style, save, tidy

LOWEST, HIGHEST = -1.0, 2.0  # skills beyond are drawn at the border
TITLES = {
    FIRST: "learned: end of the first visit",
    BEFORE_SECOND: "kept: before the second visit",
    END: "at the end",
}
SPREAD = 0.6  # of the arms of a game, in rows


def draw_plasticity(networks: Sequence[Network], references: References, file: Path) -> Path:
    """Draw one panel per moment and one row per game: a small point per seed, a large mean."""
    arms = continual_networks(networks)
    learners = [one for found in arms.values() for one in found]
    games = list(dict.fromkeys(game for one in learners for game in one.games))
    shown = [
        moment
        for moment in MOMENTS
        if any(moment in moments(one, game) for one in learners for game in one.games)
    ]
    height = 1.3 + (0.2 + 0.16 * len(arms)) * len(games)
    size = (1.6 + 2.7 * len(shown), max(2.4, height))
    figure, grid = plt.subplots(
        1, max(1, len(shown)), figsize=size, layout="constrained", squeeze=False, sharey=True
    )
    for ax, moment in zip(grid.flat, shown, strict=False):
        _draw_moment(ax, moment, games, arms, references)
    grid[0, 0].set_yticks(range(len(games)), [game_name(game) for game in games])
    grid[0, 0].set_ylim(len(games) - 0.5, -0.5)
    handles = [
        *(Line2D([], [], color=LOOKS[a].color, marker=LOOKS[a].marker, linestyle="") for a in arms),
        *(Line2D([], [], **line_style(one)) for one in ("single", "random")),
    ]
    labels = [ARM_LABELS[arm] for arm in (*arms, "single", "random")]
    columns = len(labels) if len(shown) > 2 else 3
    figure.legend(
        handles, labels, loc="outside upper left", frameon=False, ncols=columns, fontsize=8
    )
    figure.supxlabel(
        f"skill; beyond {LOWEST:g} and {HIGHEST:g} at the border, × where it is undefined",
        fontsize=9,
    )
    return save(grid[0, 0], file)


def _draw_moment(
    ax: Axes,
    moment: str,
    games: Sequence[str],
    arms: dict[str, list[Network]],
    references: References,
) -> None:
    """Draw the skills at one moment."""
    tidy(ax).set_title(TITLES[moment], fontsize=9)
    for place, reference in ((0, "random"), (1, "single")):
        ax.axvline(place, **line_style(reference), zorder=1)
    for border in range(1, len(games)):
        ax.axhline(border - 0.5, color="0.9", linewidth=0.8, zorder=0)
    offsets = np.linspace(-0.5, 0.5, len(arms)) * SPREAD if len(arms) > 1 else [0.0]
    for (arm, networks), offset in zip(arms.items(), offsets, strict=True):
        for row, game in enumerate(games):
            tests = [(one, moments(one, game).get(moment)) for one in networks if game in one.games]
            found = [skill_in(one, game, test, references) for one, test in tests if test]
            _draw_skills(ax, row + offset, arm, found)
    ax.set_xlim(LOWEST - 0.15, HIGHEST + 0.15)
    ax.set_xticks(np.arange(LOWEST, HIGHEST + 1))
    ax.tick_params(labelsize=8)


def _draw_skills(ax: Axes, y: float, arm: str, found: Sequence[float | None]) -> None:
    """Draw the skills of one arm in one game, one per seed, and their mean."""
    known = [skill for skill in found if skill is not None]
    color, marker = LOOKS[arm].color, LOOKS[arm].marker
    if found and not known:
        ax.plot([0], [y], "x", color="0.6", markersize=4)
        return
    if len(known) > 1:
        seeds = np.clip(known, LOWEST, HIGHEST)
        ax.plot(seeds, [y] * len(seeds), marker, color=color, markersize=2.5, alpha=0.5)
    if known:
        mean = np.clip(np.mean(known), LOWEST, HIGHEST)
        ax.plot([mean], [y], marker, color=color, markersize=5.5, zorder=3)
