"""What is learned beside what is kept: the skill in each game after its first visit and later.

A network that froze keeps everything, so the panels belong together.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
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
from ewc_paper.figures.panel import Dots, Level, Panel
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.style import LOOKS, SOLID, Look, line_style, save

LOWEST, HIGHEST = -1.0, 2.0  # skills beyond are drawn at the border
TITLES = {
    FIRST: "learned: end of the first visit",
    BEFORE_SECOND: "kept: before the second visit",
    END: "at the end",
}
SPREAD = 0.6  # of the arms of a game, in rows
UNDEFINED = Look("#999999", SOLID, "x")


def plasticity_panels(networks: Sequence[Network], references: References) -> list[Panel]:
    """Return one panel per moment that was reached, with one row per game.

    A small point is a seed, a large one the mean.
    """
    arms = continual_networks(networks)
    learners = [one for found in arms.values() for one in found]
    games = list(dict.fromkeys(game for one in learners for game in one.games))
    shown = [
        moment
        for moment in MOMENTS
        if any(moment in moments(one, game) for one in learners for game in one.games)
    ]
    return [_panel(moment, games, arms, references) for moment in shown]


def _panel(
    moment: str, games: Sequence[str], arms: dict[str, list[Network]], references: References
) -> Panel:
    """Return the skills at one moment."""
    offsets = np.linspace(-0.5, 0.5, len(arms)) * SPREAD if len(arms) > 1 else [0.0]
    dots: list[Dots] = []
    for (arm, networks), offset in zip(arms.items(), offsets, strict=True):
        for row, game in enumerate(games):
            tests = [(one, moments(one, game).get(moment)) for one in networks if game in one.games]
            found = [skill_in(one, game, test, references) for one, test in tests if test]
            dots += _skills(row + float(offset), arm, found)
    return Panel(
        f"skill; beyond {LOWEST:g} and {HIGHEST:g} at the border, × where it is undefined",
        "",
        title=TITLES[moment],
        dots=dots,
        levels=[
            Level(ARM_LABELS[reference], LOOKS[reference], place, upright=True)
            for place, reference in ((1, "single"), (0, "random"))
        ],
        x_limits=(LOWEST - 0.15, HIGHEST + 0.15),
        y_names=[game_name(game) for game in games],
    )


def _skills(y: float, arm: str, found: Sequence[float | None]) -> Iterator[Dots]:
    """Yield the skills of one arm in one game: their mean, and a small point per seed."""
    known = [skill for skill in found if skill is not None]
    label, look = ARM_LABELS[arm], LOOKS[arm]
    if found and not known:
        yield Dots("undefined", UNDEFINED, [0.0], [y], small=True)
    if len(known) > 1:
        yield Dots(label, look, np.clip(known, LOWEST, HIGHEST).tolist(), [y] * len(known), True)
    if known:
        yield Dots(label, look, [float(np.clip(np.mean(known), LOWEST, HIGHEST))], [y])


def draw_plasticity(networks: Sequence[Network], references: References, file: Path) -> Path:
    """Draw the panels side by side, with one legend for all."""
    panels, arms = plasticity_panels(networks, references), list(continual_networks(networks))
    rows = len(panels[0].y_names) if panels else 0
    height = 1.3 + (0.2 + 0.16 * len(arms)) * rows
    size = (1.6 + 2.7 * len(panels), max(2.4, height))
    figure, grid = plt.subplots(
        1, max(1, len(panels)), figsize=size, layout="constrained", squeeze=False, sharey=True
    )
    for ax, panel in zip(grid.flat, panels, strict=False):
        plot_panel(ax, panel).set_title(panel.title, fontsize=9)
        ax.set(xlabel="", xticks=np.arange(LOWEST, HIGHEST + 1))
        ax.tick_params(labelsize=8)
        for border in range(1, rows):
            ax.axhline(border - 0.5, color="0.9", linewidth=0.8, zorder=0)
    handles = [
        *(Line2D([], [], color=LOOKS[a].color, marker=LOOKS[a].marker, linestyle="") for a in arms),
        *(Line2D([], [], **line_style(one)) for one in ("single", "random")),
    ]
    labels = [ARM_LABELS[arm] for arm in (*arms, "single", "random")]
    columns = min(len(labels), 4 if len(panels) > 2 else 3)  # an entry is nearly as wide as a panel
    figure.legend(
        handles, labels, loc="outside upper left", frameon=False, ncols=columns, fontsize=8
    )
    if panels:
        figure.supxlabel(panels[0].x_label, fontsize=9)
    return save(grid[0, 0], file)
