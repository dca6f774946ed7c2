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
from ewc_paper.experiments.view import Layout, Paper, seed_name
from ewc_paper.figures.names import METHOD_LABELS, in_order
from ewc_paper.figures.panel import Figure, Level, Panel, Series, by_seed
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.figures.style import LOOKS, axes, save, use_whole_numbers
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import integer, one_of, optional, record

LAYOUT = Layout(
    accuracy_row,
    config=record(search=optional(integer(0, 0))),  # runs of an older version could search
    part=record(label=one_of(METHOD_LABELS)),
)

PAPER = Paper(
    "figure 3B",
    'SGD with dropout "does not scale to more tasks"; EWC learns many in sequence "with only '
    'modest growth in the error rates". The paper shows this as a figure, without numbers in the '
    "text.",
    "The fraction correct over all tasks so far, for 1 to 10 tasks. SGD with dropout falls with "
    "every task; EWC stays close to the dashed line of a network that learns one task alone.",
)

# By method, number of tasks and seed: the average in percent; NaN if the network diverged.
Averages = dict[str, dict[int, dict[str, float]]]


def averages(run: RunDirectory) -> Averages:
    """Return the average test accuracy of every seed."""
    results: Averages = defaultdict(lambda: defaultdict(dict))
    for part in run.parts():
        label, seed = part.config()["label"], seed_name(part)
        for row in task_ends(part.rows()):
            results[label][row["task"] + 1][seed] = average_accuracy(row)
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
        values: dict[str, float] = {}
        for run in runs:
            values |= averages(run).get(method, {}).get(int(count), {})
        if values:
            results[method][int(count)] = values
    return {method: dict(sorted(counts.items())) for method, counts in results.items()}


def figures(run: RunDirectory) -> list[Figure]:
    """Return the average accuracy as tasks are added, one line per method."""
    return [_figure(averages(run))]


def best_figures(chosen: Mapping[str, Sequence[RunDirectory]]) -> list[Figure]:
    """Return the same for the runs that a sweep has chosen."""
    return [_figure(best_averages(chosen))]


def _figure(results: Averages) -> Figure:
    series, levels = [], []
    for method, counts in results.items():
        diverged = any(math.isnan(value) for seeds in counts.values() for value in seeds.values())
        label = METHOD_LABELS[method] + (" (some diverged)" if diverged else "")
        if method == "single":
            mean = float(np.nanmean(list(counts[1].values())))
            levels.append(Level(label, LOOKS[method], mean))
        else:
            series.append(Series(label, LOOKS[method], list(counts), by_seed(counts), "all"))
    panel = Panel(
        "number of tasks", "average accuracy over all tasks, %", series=series, levels=levels
    )
    title = "Average test accuracy over all tasks so far, as tasks are added"
    return Figure("many-tasks", title, "Higher is better; a flat line forgets nothing.", [panel])


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figure from its metrics."""
    return _draw(averages(run), run.figures, kind)


def draw_best(
    chosen: Mapping[str, Sequence[RunDirectory]], directory: Path, kind: str = "png"
) -> list[Path]:
    """Draw the figure of a sweep from the runs that were chosen."""
    return _draw(best_averages(chosen), directory, kind)


def _draw(results: Averages, directory: Path, kind: str) -> list[Path]:
    figure = _figure(results)
    ax = plot_panel(axes(), figure.panels[0])
    use_whole_numbers(ax.xaxis)
    ax.legend(frameon=False)
    return [save(ax, directory / f"{figure.name}.{kind}")]


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
        cells = [
            mean_and_deviation([*m[count].values()]) if count in m else "" for m in results.values()
        ]
        table.add_row(str(count), *cells)
    return table
