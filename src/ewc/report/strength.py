"""Average accuracy after the last task over the strength, a line for each way to take the pull."""

from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.table import Table

from ewc.runs.directory import RunDirectory

from .seeds import mean_and_spread, plot_band
from .style import COLORS, axes, save

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
    """Draw the run's figure from its metrics."""
    ax = axes()
    for how, strengths in averages(run).items():
        seeds = min(len(values) for values in strengths.values())
        values = [[strengths[strength][seed] for strength in strengths] for seed in range(seeds)]
        plot_band(
            ax, list(strengths), values, color=COLORS[how], label=how, marker="o", markersize=3
        )
    ax.set_xscale("log")
    ax.set_xlabel("strength λ")
    ax.set_ylabel(f"average accuracy after {run.config()['tasks']} tasks, %")
    ax.legend(frameon=False)
    return [save(ax, run.figures / "strength.png")]


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
