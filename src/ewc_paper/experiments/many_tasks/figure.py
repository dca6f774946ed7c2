"""Figure 3B: the average accuracy over all tasks so far as tasks are added, one line per method.

If several combinations of options were searched, each number of tasks shows the combination with
the best validation accuracy.
"""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.table import Table

from ewc_paper.experiments.accuracy_rows import accuracy_row, average_accuracy, task_ends
from ewc_paper.experiments.view import Layout
from ewc_paper.figures.names import METHOD_LABELS, in_order
from ewc_paper.figures.seeds import mean_and_deviation, plot_band
from ewc_paper.figures.style import axes, line_style, marker_style, save, use_whole_numbers
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.schema import integer, one_of, record

LAYOUT = Layout(accuracy_row, part=record(label=one_of(METHOD_LABELS), combination=integer()))

# By method, by number of tasks: one average per seed, in percent; NaN if the network diverged.
Averages = dict[str, dict[int, list[float]]]


def averages(run: RunDirectory) -> Averages:
    """Return the average test accuracy of the combination chosen for each number of tasks."""
    rows: dict[str, dict[int, dict[int, list[MetricsRow]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for part in run.parts():
        config = part.config()
        for row in task_ends(part.rows()):
            rows[config["label"]][row["task"] + 1][config["combination"]].append(row)
    results = {
        method: {
            count: [average_accuracy(row) for row in _best(combinations)]
            for count, combinations in sorted(counts.items())
        }
        for method, counts in rows.items()
    }
    return in_order(results, run.config().get("methods", []))


def _best(combinations: dict[int, list[MetricsRow]]) -> list[MetricsRow]:
    """Return the rows of the combination with the best validation accuracy."""
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
        label = METHOD_LABELS[method] + (" (some diverged)" if diverged else "")
        if method == "single":
            ax.axhline(float(np.nanmean(counts[1])), label=label, **line_style(method))
            continue
        seeds = min(len(values) for values in counts.values())
        values = [[counts[count][seed] for count in counts] for seed in range(seeds)]
        plot_band(ax, list(counts), values, label=label, **marker_style(method))
    ax.set_xlabel("number of tasks")
    ax.set_ylabel("average accuracy over all tasks, %")
    use_whole_numbers(ax.xaxis)
    ax.legend(frameon=False)
    return [save(ax, run.figures / "many-tasks.png")]


def table(run: RunDirectory) -> Table:
    """The average accuracies, for about ten numbers of tasks at most."""
    results = averages(run)
    counts = sorted({count for method in results.values() for count in method})
    every = max(1, len(counts) // 10)
    table = Table("tasks", title="average test accuracy in % over all tasks so far")
    for method in results:
        table.add_column(METHOD_LABELS[method], justify="right")
    for count in [count for count in counts if count == 1 or count % every == 0]:
        cells = [mean_and_deviation(m[count]) if count in m else "" for m in results.values()]
        table.add_row(str(count), *cells)
    return table
