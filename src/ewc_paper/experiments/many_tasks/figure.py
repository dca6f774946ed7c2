"""Figure 3B: the average accuracy over all tasks so far as tasks are added, one line per method.

Of a sweep, each number of tasks shows the trial that was chosen for it by validation accuracy, run
again with seeds that chose nothing.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from ewc_paper.experiments.accuracy_rows import accuracy_row, average_accuracy, task_ends
from ewc_paper.experiments.view import Layout
from ewc_paper.figures.names import METHOD_LABELS, in_order
from ewc_paper.figures.seeds import mean_and_deviation, plot_band
from ewc_paper.figures.style import axes, line_style, marker_style, save, use_whole_numbers
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import integer, one_of, optional, record

LAYOUT = Layout(
    accuracy_row,
    config=record(search=optional(integer(0, 0))),  # runs of an older version could search
    part=record(label=one_of(METHOD_LABELS)),
)

# By method, by number of tasks: one average per seed, in percent; NaN if the network diverged.
Averages = dict[str, dict[int, list[float]]]


def averages(run: RunDirectory) -> Averages:
    """Return the average test accuracy of every seed."""
    results: Averages = defaultdict(lambda: defaultdict(list))
    for part in run.parts():
        for row in task_ends(part.rows()):
            results[part.config()["label"]][row["task"] + 1].append(average_accuracy(row))
    by_count = {method: dict(sorted(counts.items())) for method, counts in results.items()}
    return in_order(by_count, run.config().get("methods", []))


def best_averages(chosen: Mapping[str, Sequence[RunDirectory]]) -> Averages:
    """Return the averages of the runs that were chosen for each method and number of tasks.

    Args:
        chosen: by method and number of tasks, as `ManyTasks.points` names them: the runs.
    """
    results: Averages = defaultdict(dict)
    for point, runs in chosen.items():
        method, _, count = point.rpartition("-")
        found = [averages(run).get(method, {}).get(int(count), []) for run in runs]
        if values := [value for values in found for value in values]:
            results[method][int(count)] = values
    return {method: dict(sorted(counts.items())) for method, counts in results.items()}


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics."""
    return _draw(averages(run), run.figures)


def draw_best(chosen: Mapping[str, Sequence[RunDirectory]], figures: Path) -> list[Path]:
    """Draw the figure of a sweep from the runs that were chosen."""
    return _draw(best_averages(chosen), figures)


def _draw(results: Averages, figures: Path) -> list[Path]:
    ax = axes()
    for method, counts in results.items():
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
    return [save(ax, figures / "many-tasks.png")]


def table(run: RunDirectory) -> Table:
    """The average accuracies, for about ten numbers of tasks at most."""
    return _table(averages(run))


def best_table(chosen: Mapping[str, Sequence[RunDirectory]]) -> Table:
    """The average accuracies of the runs that were chosen."""
    return _table(best_averages(chosen))


def _table(results: Averages) -> Table:
    counts = sorted({count for method in results.values() for count in method})
    every = max(1, len(counts) // 10)
    table = Table("tasks", title="average test accuracy in % over all tasks so far")
    for method in results:
        table.add_column(METHOD_LABELS[method], justify="right")
    for count in [count for count in counts if count == 1 or count % every == 0]:
        cells = [mean_and_deviation(m[count]) if count in m else "" for m in results.values()]
        table.add_row(str(count), *cells)
    return table
