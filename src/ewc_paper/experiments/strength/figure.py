"""Average accuracy after the last task over the strength, a line for each way to take the pull."""

import math
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from ewc_paper.figures.names import in_order
from ewc_paper.figures.seeds import mean_and_spread, plot_band
from ewc_paper.figures.style import LOOKS, points, save, tidy
from ewc_paper.runs.directory import RunDirectory

Averages = dict[str, dict[float, list[float]]]  # by way, by strength: one average a seed, in %
ZOOM = 5.0  # accuracies in % that the second panel shows


def averages(run: RunDirectory) -> Averages:
    """The average accuracy of networks that have ended their last task; NaN if one diverged."""
    results: Averages = defaultdict(lambda: defaultdict(list))
    for part in run.parts():
        recipe = part.config()["recipe"]
        ends = [
            row for row in part.rows() if row["task"] == recipe["tasks"] - 1 and row["task_ended"]
        ]
        if ends:
            average = 100 * float(np.mean(ends[-1]["accuracy"]))
            diverged = ends[-1].get("diverged", False)
            results[recipe["how"]][recipe["strength"]].append(math.nan if diverged else average)
    found = {how: dict(sorted(strengths.items())) for how, strengths in results.items()}
    return in_order(found, run.config().get("ways", []))


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics: all of it, and the plateau from close by."""
    _, panels = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    results = averages(run)
    for ax in panels:
        for how, strengths in results.items():
            seeds = min(len(values) for values in strengths.values())
            values = [[averages[seed] for averages in strengths.values()] for seed in range(seeds)]
            plot_band(ax, list(strengths), values, label=how, **points(how))
        tidy(ax).set_xscale("log")
        ax.set_xlabel("strength λ")
    measured = [value for way in results.values() for values in way.values() for value in values]
    best = max((value for value in measured if math.isfinite(value)), default=100.0)
    panels[0].set_ylim(0, 102.5)  # room for a marker at 100
    for how, strengths in results.items():
        _mark_diverged(panels[0], how, strengths)
    panels[0].set_ylabel(f"average accuracy after {run.config()['tasks']} tasks, %")
    panels[0].legend(frameon=False)
    panels[1].set_ylim(best - ZOOM, best + ZOOM / 10)
    panels[1].set_title(f"zoomed in: the top {ZOOM:g} points of accuracy", fontsize=9, loc="left")
    return [save(panels[0], run.figures / "strength.png")]


def _mark_diverged(ax: Axes, how: str, strengths: dict[float, list[float]]) -> None:
    """A cross near the bottom of the panel at each strength with a network that diverged."""
    places = [strength for strength, values in strengths.items() if np.isnan(values).any()]
    if places:
        ax.plot(
            places,
            [0.04] * len(places),
            "x",
            color=LOOKS[how][0],
            label=f"{how}, diverged",
            transform=ax.get_xaxis_transform(),
        )


def table(run: RunDirectory) -> Table:
    """The averages, a row a strength."""
    results = averages(run)
    table = Table(
        "strength", title=f"average test accuracy in % after {run.config()['tasks']} tasks"
    )
    for how in results:
        table.add_column(how, justify="right")
    for strength in sorted({strength for way in results.values() for strength in way}):
        cells = [
            mean_and_spread(way[strength]) if strength in way else "" for way in results.values()
        ]
        table.add_row(f"{strength:g}", *cells)
    return table
