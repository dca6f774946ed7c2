"""Average accuracy after the last task over the strength, a line for each way to take the pull."""

from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from rich.table import Table

from ewc.runs.directory import RunDirectory

from .seeds import mean_and_spread, plot_band
from .style import COLORS, save, tidy

Averages = dict[str, dict[float, list[float]]]  # by way, by strength: one average a seed, in %


def averages(run: RunDirectory) -> Averages:
    """The average accuracy after the last task; a run that is not there yet is left out."""
    results: Averages = defaultdict(lambda: defaultdict(list))
    for part in run.parts():
        recipe = part.config()["recipe"]
        ends = [
            row for row in part.rows() if row["task"] == recipe["tasks"] - 1 and row["task_ended"]
        ]
        if ends:
            average = 100 * float(np.mean(ends[-1]["accuracy"]))
            results[recipe["how"]][recipe["strength"]].append(average)
    return {how: dict(sorted(strengths.items())) for how, strengths in results.items()}


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics: all of it, and the plateau from near by."""
    _, panels = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    results = averages(run)
    for ax in panels:
        for how, strengths in results.items():
            seeds = min(len(values) for values in strengths.values())
            values = [[averages[seed] for averages in strengths.values()] for seed in range(seeds)]
            look = {"color": COLORS[how], "label": how, "marker": "o", "markersize": 3}
            plot_band(ax, list(strengths), values, **look)
        tidy(ax).set_xscale("log")
        ax.set_xlabel("strength λ")
    best = max((max(v) for way in results.values() for v in way.values()), default=100.0)
    panels[0].set_ylim(0, 100)
    panels[0].set_ylabel(f"average accuracy after {run.config()['tasks']} tasks, %")
    panels[0].legend(frameon=False)
    panels[1].set_ylim(best - 5, best + 0.5)
    return [save(panels[0], run.figures / "strength.png")]


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
