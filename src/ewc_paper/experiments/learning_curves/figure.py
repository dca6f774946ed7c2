"""Figure 3A: the accuracy of each task during all training, a panel a task, a color a method."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from rich.table import Table

from ewc_paper.figures.names import METHODS, in_order, task_name
from ewc_paper.figures.style import line, save, tidy
from ewc_paper.runs.directory import Row, RunDirectory


def _parts(run: RunDirectory) -> dict[str, list[Row]]:
    """The rows of each method, in the order of the options."""
    found = {part.name: part.rows() for part in run.parts()}
    return in_order(found, run.config().get("methods", []))


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics."""
    epochs, tasks = run.config()["epochs"], run.config()["tasks"]
    _, panels = plt.subplots(
        tasks,
        1,
        figsize=(6.4, 1.2 + 1.4 * tasks),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for method, rows in _parts(run).items():
        diverged = any(row.get("diverged") for row in rows)
        label = METHODS[method] + (" (diverged)" if diverged else "")
        for task, panel in enumerate(panels[:, 0]):
            seen = [row for row in rows if row["task"] >= task and not row.get("diverged")]
            times = [row["task"] * epochs + row["epoch"] for row in seen]
            values = [100 * row["accuracy"][task] for row in seen]
            panel.plot(times, values, label=label, **line(method))
    for task, panel in enumerate(panels[:, 0]):
        tidy(panel)
        panel.set_ylabel(f"task {task_name(task)}, %")
        panel.axvspan(task * epochs, (task + 1) * epochs, color="0.93", zorder=0)
        for border in range(1, tasks):
            panel.axvline(border * epochs, color="0.6", linewidth=0.8, linestyle=":")
    panels[0, 0].set_ylim(_lower(run), 100)
    panels[0, 0].legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    panels[-1, 0].set_xlabel("epochs; the task being trained is shaded")
    return [save(panels[0, 0], run.figures / "learning-curves.png")]


def _lower(run: RunDirectory) -> float:
    """Room for all but the lowest hundredth of the measurements."""
    rows = [row for rows in _parts(run).values() for row in rows if not row.get("diverged")]
    values = [value for row in rows for value in row["accuracy"]]
    return 5 * float(np.floor(20 * np.quantile(values, 0.01))) if values else 0.0


def table(run: RunDirectory) -> Table:
    """The accuracy of every task after each task, for each method."""
    tasks = run.config()["tasks"]
    table = Table(title="test accuracy in %, after each task")
    table.add_column("method")
    table.add_column("after")
    for task in range(tasks):
        table.add_column(f"on {task_name(task)}", justify="right")
    for method, rows in _parts(run).items():
        ends = [row for row in rows if row["task_ended"]]
        for row in ends:
            diverged = row.get("diverged", False)
            values = ["diverged" if diverged else f"{100 * v:.2f}" for v in row["accuracy"]]
            last = row is ends[-1]
            table.add_row(METHODS[method], task_name(row["task"]), *values, end_section=last)
    return table
