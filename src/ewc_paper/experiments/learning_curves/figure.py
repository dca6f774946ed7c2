"""Figure 3A: the accuracy of each task over all of training, one panel per task."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from rich.table import Table

from ewc_paper.experiments.accuracy_rows import accuracy_row, task_ends
from ewc_paper.experiments.view import MAX_PANELS, Layout, Paper, StoredConfig
from ewc_paper.figures.names import METHOD_LABELS, in_order, task_name
from ewc_paper.figures.panel import Box, Figure, Panel, Series
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.style import LOOKS, save
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.schema import Check, integer, number, one_of, optional, record


def _part_name(part: StoredConfig) -> Check:
    """A part is named after its method."""
    method = (part.get("recipe") or {}).get("method")
    return one_of([method] if method else METHOD_LABELS)


LAYOUT = Layout(
    accuracy_row,
    config=record(tasks=integer(1, MAX_PANELS), epochs=number(0)),
    part=record(recipe=optional(record(method=optional(one_of(METHOD_LABELS))))),
    part_name=_part_name,
)


PAPER = Paper(
    "figure 3A",
    "On three random permutations of MNIST's pixels, learned one after another, plain SGD forgets "
    "A while it learns B, and more while it learns C. L2 keeps A but cannot learn B and C "
    "properly. EWC does both.",
    "Three panels, one per task, with the test accuracy of SGD, L2 and EWC over the training of A, "
    "B and C. The line of EWC stays at the top of every panel, SGD falls in A and B as soon as "
    "another task is trained, and L2 stays low in B and C.",
)


def _rows_by_method(run: RunDirectory) -> dict[str, list[MetricsRow]]:
    """Return the rows of each method, in the order of the options."""
    rows = {part.name: part.rows() for part in run.parts()}
    return in_order(rows, run.config().get("methods", []))


def figures(run: RunDirectory) -> list[Figure]:
    """Return the accuracy of each task over all of training, one panel per task."""
    config, rows = run.config(), _rows_by_method(run)
    title = "Test accuracy on each task during training"
    caption = "One panel per task; in the shaded part the task is being trained."
    lowest = _lowest_shown(rows)
    panels = [_panel(task, rows, config, lowest) for task in range(config["tasks"])]
    return [Figure("learning-curves", title, caption, panels)]


def _panel(
    task: int, rows: dict[str, list[MetricsRow]], config: StoredConfig, lowest: float
) -> Panel:
    """Return the accuracy of one task, from when it was first trained."""
    epochs, tasks, name = config["epochs"], config["tasks"], task_name(task)
    return Panel(
        title=f"task {name}",
        x_label="epochs (gray: the task is being trained)",
        y_label=f"accuracy on {name}, %",
        series=[_curve(method, found, task, epochs) for method, found in rows.items()],
        boxes=[Box("", "#ededed", (task * epochs, (task + 1) * epochs))],
        borders=[border * epochs for border in range(1, tasks)],
        x_limits=(0, tasks * epochs) if epochs else None,
        y_limits=(lowest, 100),
    )


def _curve(method: str, rows: list[MetricsRow], task: int, epochs: float) -> Series:
    diverged = any(row.get("diverged") for row in rows)
    label = METHOD_LABELS[method] + (" (diverged)" if diverged else "")
    measured = [row for row in rows if row["task"] >= task and not row.get("diverged")]
    times = [row["task"] * epochs + row["epoch"] for row in measured]
    values = [100 * row["accuracy"][task] for row in measured]
    return Series(label, LOOKS[method], times, {"": values})


def _lowest_shown(rows: dict[str, list[MetricsRow]]) -> float:
    """Lower limit of the y axis: below all but the lowest hundredth of the measurements."""
    measured = [row for found in rows.values() for row in found if not row.get("diverged")]
    values = [value for row in measured for value in row["accuracy"]]
    return 5 * float(np.floor(20 * np.quantile(values, 0.01))) if values else 0.0


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figure from its metrics."""
    (figure,) = figures(run)
    count = len(figure.panels)
    _, grid = plt.subplots(
        count,
        1,
        figsize=(6.4, 1.2 + 1.4 * count),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for ax, panel in zip(grid.flat, figure.panels, strict=True):
        plot_panel(ax, panel)
        ax.label_outer()  # epochs are written below the last panel only
    grid[0, 0].legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return [save(grid[0, 0], run.figures / f"{figure.name}.{kind}")]


def table(run: RunDirectory) -> Table:
    """The accuracy on every task after each task, for each method."""
    table = Table(title="test accuracy in % after each task")
    table.add_column("method")
    table.add_column("after task")
    for task in range(run.config()["tasks"]):
        table.add_column(f"on {task_name(task)}", justify="right")
    for method, rows in _rows_by_method(run).items():
        ends = task_ends(rows)
        for row in ends:
            diverged = row.get("diverged", False)
            values = ["diverged" if diverged else f"{100 * v:.2f}" for v in row["accuracy"]]
            last = row is ends[-1]
            table.add_row(METHOD_LABELS[method], task_name(row["task"]), *values, end_section=last)
    return table
