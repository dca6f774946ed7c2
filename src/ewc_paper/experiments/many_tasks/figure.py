"""Figure 3B: the average accuracy over all tasks so far as tasks are added, by method.

Where several combinations were searched, each number of tasks shows the one that did best on
validation.
"""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from ewc_paper.figures.names import METHODS, in_order
from ewc_paper.figures.seeds import mean_and_spread, plot_band
from ewc_paper.figures.style import axes, line, points, save
from ewc_paper.runs.directory import Row, RunDirectory

Averages = dict[
    str, dict[int, list[float]]
]  # by method, by number of tasks: one average a seed, in %; NaN where the network diverged


def averages(run: RunDirectory) -> Averages:
    """The average test accuracy of the best combination by validation, for each number of tasks."""
    results: dict[str, dict[int, dict[int, list[Row]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for part in run.parts():
        config = part.config()
        for row in _task_ends(part.rows()):
            results[config["label"]][row["task"] + 1][config["combination"]].append(row)
    found = {
        method: {
            count: [_average(row) for row in _best(combinations)]
            for count, combinations in sorted(counts.items())
        }
        for method, counts in results.items()
    }
    return in_order(found, run.config().get("methods", []))


def _average(row: Row) -> float:
    return math.nan if row.get("diverged") else 100 * float(np.mean(row["accuracy"]))


def _task_ends(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["task_ended"]]


def _best(combinations: dict[int, list[Row]]) -> list[Row]:
    if len(combinations) == 1:
        return next(iter(combinations.values()))
    return max(
        combinations.values(),
        key=lambda rows: np.mean([np.mean(row["validation"]) for row in rows]),
    )


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics."""
    ax = axes()
    for method, counts in averages(run).items():
        diverged = any(math.isnan(value) for values in counts.values() for value in values)
        label = METHODS[method] + (" (some diverged)" if diverged else "")
        if method == "single":
            ax.axhline(float(np.nanmean(counts[1])), label=label, **line(method))
            continue
        seeds = min(len(values) for values in counts.values())
        values = [[counts[count][seed] for count in counts] for seed in range(seeds)]
        plot_band(ax, list(counts), values, label=label, **points(method))
    ax.set_xlabel("number of tasks")
    ax.set_ylabel("average accuracy over all tasks, %")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False)
    return [save(ax, run.figures / "many-tasks.png")]


def table(run: RunDirectory) -> Table:
    """The averages, at most about ten numbers of tasks."""
    results = averages(run)
    counts = sorted({count for method in results.values() for count in method})
    every = max(1, len(counts) // 10)
    table = Table("tasks", title="average test accuracy in % over all tasks so far")
    for method in results:
        table.add_column(METHODS[method], justify="right")
    for count in [count for count in counts if count == 1 or count % every == 0]:
        cells = [mean_and_spread(m[count]) if count in m else "" for m in results.values()]
        table.add_row(str(count), *cells)
    return table
