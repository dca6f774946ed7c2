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
from ewc_paper.experiments.view import Layout, Paper, seed_name
from ewc_paper.figures.names import METHOD_LABELS, in_order
from ewc_paper.figures.panel import Figure, Level, Panel, Series, by_seed
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.figures.style import LOOKS, axes, save, use_whole_numbers
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.schema import integer, one_of, record

LAYOUT = Layout(accuracy_row, part=record(label=one_of(METHOD_LABELS), combination=integer()))

PAPER = Paper(
    "figure 3B",
    'SGD with dropout "does not scale to more tasks"; EWC learns many in sequence "with only '
    'modest growth in the error rates". The paper shows this as a figure, without numbers in the '
    "text.",
    "The fraction correct over all tasks so far, for 1 to 10 tasks. SGD with dropout falls with "
    "every task; EWC stays close to the dashed line of a network that learns one task alone.",
)

Results = dict[str, dict[int, dict[str, float]]]  # by method, number of tasks and seed


def averages(run: RunDirectory) -> Results:
    """Return the average test accuracy of the combination chosen for each number of tasks.

    In percent; NaN if the network diverged.
    """
    rows: dict[str, dict[int, dict[int, dict[str, MetricsRow]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for part in run.parts():
        config, seed = part.config(), seed_name(part)
        for row in task_ends(part.rows()):
            rows[config["label"]][row["task"] + 1][config["combination"]][seed] = row
    results = {
        method: {
            count: {seed: average_accuracy(row) for seed, row in _best(combinations).items()}
            for count, combinations in sorted(counts.items())
        }
        for method, counts in rows.items()
    }
    return in_order(results, run.config().get("methods", []))


def _best(combinations: dict[int, dict[str, MetricsRow]]) -> dict[str, MetricsRow]:
    """Return the rows of the combination with the best validation accuracy, by seed."""
    if len(combinations) == 1:
        return next(iter(combinations.values()))
    return max(
        combinations.values(),
        key=lambda rows: np.mean([np.mean(row["validation"]) for row in rows.values()]),
    )


def figures(run: RunDirectory) -> list[Figure]:
    """Return the average accuracy as tasks are added, one line per method."""
    series, levels = [], []
    for method, counts in averages(run).items():
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
    return [Figure("many-tasks", title, "Higher is better; a flat line forgets nothing.", [panel])]


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figure from its metrics."""
    (figure,) = figures(run)
    ax = plot_panel(axes(), figure.panels[0])
    use_whole_numbers(ax.xaxis)
    ax.legend(frameon=False)
    return [save(ax, run.figures / f"{figure.name}.{kind}")]


def table(run: RunDirectory) -> Table:
    """The average accuracies, for about ten numbers of tasks at most."""
    results = averages(run)
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
