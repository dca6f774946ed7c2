"""Figure 3A: the accuracy of each task over all of training, one panel per task."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from ewc_paper.experiments.accuracy_rows import accuracy_row, task_ends
from ewc_paper.experiments.view import MAX_PANELS, Layout, StoredConfig
from ewc_paper.figures.names import METHOD_LABELS, in_order, task_name
from ewc_paper.figures.style import line_style, save, tidy
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


def _rows_by_method(run: RunDirectory) -> dict[str, list[MetricsRow]]:
    """Return the rows of each method, in the order of the options."""
    rows = {part.name: part.rows() for part in run.parts()}
    return in_order(rows, run.config().get("methods", []))


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics."""
    epochs, tasks = run.config()["epochs"], run.config()["tasks"]
    _, grid = plt.subplots(
        tasks,
        1,
        figsize=(6.4, 1.2 + 1.4 * tasks),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    panels: list[Axes] = list(grid[:, 0])
    for method, rows in _rows_by_method(run).items():
        _plot_method(panels, method, rows, epochs)
    for task, panel in enumerate(panels):
        tidy(panel)
        panel.set_ylabel(f"accuracy on {task_name(task)}, %")
        panel.axvspan(task * epochs, (task + 1) * epochs, color="0.93", zorder=0)
        for border in range(1, tasks):
            panel.axvline(border * epochs, color="0.6", linewidth=0.8, linestyle=":")
    panels[0].set_ylim(_lowest_shown(run), 100)
    panels[0].legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    panels[-1].set_xlabel("epochs (gray: the task is being trained)")
    return [save(panels[0], run.figures / "learning-curves.png")]


def _plot_method(panels: list[Axes], method: str, rows: list[MetricsRow], epochs: float) -> None:
    """Plot the accuracy of each task into its panel, from when the task was first trained."""
    diverged = any(row.get("diverged") for row in rows)
    label = METHOD_LABELS[method] + (" (diverged)" if diverged else "")
    for task, panel in enumerate(panels):
        measured = [row for row in rows if row["task"] >= task and not row.get("diverged")]
        times = [row["task"] * epochs + row["epoch"] for row in measured]
        values = [100 * row["accuracy"][task] for row in measured]
        panel.plot(times, values, label=label, **line_style(method))


def _lowest_shown(run: RunDirectory) -> float:
    """Lower limit of the y axis: below all but the lowest hundredth of the measurements."""
    rows = [
        row for rows in _rows_by_method(run).values() for row in rows if not row.get("diverged")
    ]
    values = [value for row in rows for value in row["accuracy"]]
    return 5 * float(np.floor(20 * np.quantile(values, 0.01))) if values else 0.0


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
