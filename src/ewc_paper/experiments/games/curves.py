"""Panels A and B of the paper's figure on Atari: the schedule, and totals over training."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from ewc_paper.experiments.games.data import (
    Network,
    arms_of,
    ceiling,
    continual_networks,
    curves,
    total,
)
from ewc_paper.experiments.games.skill import References, defined, skills, total_or_nan
from ewc_paper.figures.names import ARM_LABELS, game_name
from ewc_paper.figures.panel import Box, Dots, Markers, Panel, Series, Values
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.style import (
    BLACK,
    LOOKS,
    RED,
    SOLID,
    Look,
    axes,
    save,
    use_short_numbers,
)
from ewc_paper.games.arms import PROTECTED, SINGLE


def schedule_panel(networks: Sequence[Network]) -> Panel:
    """Return which game is trained when; with EWC, a point where a segment ends in protection."""
    network, steps = networks[0], networks[0].settings["segment_steps"]
    protected = [one for one in networks if one.arm in PROTECTED]
    start = (protected[0].settings.get("ewc_start") or 0) if protected else 0
    trained = dict.fromkeys(network.games, 0)
    boxes, ends = [], []
    for segment, game in enumerate(network.schedule):
        row = network.games.index(game)
        x = (segment * steps, (segment + 1) * steps)
        boxes.append(Box("being trained", BLACK, x, (row - 0.25, row + 0.25)))
        trained[game] += steps
        if protected and trained[game] >= start:
            ends.append((x[1], row))
    look = Look(RED, SOLID, "o")
    return Panel(
        "agent steps",
        "",
        boxes=boxes,
        dots=[Dots("protected by EWC from here on", look, [x], [y]) for x, y in ends],
        y_names=[game_name(game) for game in network.games],
        x_limits=(0, len(network.schedule) * steps),
    )


def draw_schedule(networks: Sequence[Network], file: Path) -> Path:
    """Draw which game is trained when."""
    panel = schedule_panel(networks)
    ax = plot_panel(axes(6.4, 1.2 + 0.3 * len(panel.y_names)), panel)
    if any(one.arm in PROTECTED for one in networks):
        ax.set_title("red point: from here on, EWC protects the game", fontsize=9, loc="left")
    use_short_numbers(ax)
    return save(ax, file)


def total_panels(networks: Sequence[Network], references: References) -> list[Panel]:
    """Return the total skill over training and beside it the total normalized score.

    One network per game is the ceiling of both. Without skill, the second panel stands alone.
    """
    panels = [_normalized_panel(networks)]
    if references.complete:
        panels.insert(0, _skill_panel(networks, references))
    return panels


def draw_totals(networks: Sequence[Network], references: References, file: Path) -> Path:
    """Draw the totals with one legend for both."""
    panels = total_panels(networks, references)
    figure, grid = plt.subplots(
        1, len(panels), figsize=(1.6 + 4.8 * len(panels), 3.8), layout="constrained", squeeze=False
    )
    for ax, panel in zip(grid.flat, panels, strict=True):
        plot_panel(ax, panel).set_xlabel("")
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
        use_short_numbers(ax)
    figure.supxlabel(panels[0].x_label, fontsize=10)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    columns = 2 if len(panels) == 1 else 4
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=columns)
    return save(grid[0, 0], file)


def _skill_panel(networks: Sequence[Network], references: References) -> Panel:
    """Return the total skill; a network per game has 1 in each game trained so far."""
    arms = continual_networks(networks)
    learners = next(iter(arms.values()))
    series = []
    for arm in arms_of(networks):
        if arm == SINGLE:
            most = curves(learners, lambda one, test: len(defined(skills(one, test, references))))
            series.append(_series(arm, *most, "none"))
        elif arm in arms:
            found = curves(arms[arm], lambda one, test: total_or_nan(one, test, references))
            series.append(_series(arm, *found))
    return _total_panel(learners[0], "total skill", "in", series, _left_out(learners, references))


def _left_out(learners: Sequence[Network], references: References) -> str:
    """Say how many games have no skill at the end; nothing if all have."""
    ends = [skills(one, len(one.schedule), references) for one in learners if one.finished]
    missing = sum(len(end) - len(defined(end)) for end in ends)
    everything = sum(len(end) for end in ends)
    return f"{missing} of {everything} left out at the end: not learned even alone" * bool(missing)


def _normalized_panel(networks: Sequence[Network]) -> Panel:
    """Return the total normalized score, as in the paper."""
    arms = continual_networks(networks)
    learners = next(iter(arms.values()))
    series = []
    for arm in arms_of(networks):
        if arm == SINGLE:
            series += _ceiling(networks, learners)
        elif arm in arms:
            series.append(_series(arm, *curves(arms[arm], lambda one, at: total(one.tests[at]))))
    return _total_panel(learners[0], "total normalized score", "of", series)


def _total_panel(
    learner: Network, measure: str, joined: str, series: list[Series], note: str = ""
) -> Panel:
    games, steps = len(learner.games), learner.settings["segment_steps"]
    return Panel(
        "agent steps; tested on all games after each segment",
        f"{measure} {joined} {games} games",
        title=measure,
        series=series,
        borders=[segment * steps for segment in range(1, len(learner.schedule))],
        y_limits=(None, 1.03 * games),  # a marker at the highest total is drawn whole
        note=note,
    )


def _series(arm: str, steps: Sequence[float], values: Values, markers: Markers = "all") -> Series:
    return Series(ARM_LABELS[arm], LOOKS[arm], steps, values, markers)


def _ceiling(networks: Sequence[Network], learners: Sequence[Network]) -> list[Series]:
    """Return the line of one network per game, if they have come far enough."""
    found = {one.seed_name: ceiling(networks, one) for one in learners}
    limits = {seed: limit for seed, limit in found.items() if limit is not None}
    if not limits:
        return []
    segments = range(len(next(iter(limits.values()))))
    steps = [segment * learners[0].settings["segment_steps"] for segment in segments]
    return [_series(SINGLE, steps, limits, "none")]
