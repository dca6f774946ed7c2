"""Figure 1: trajectories from task A's solution, over the regions of low loss of tasks A and B."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from ewc_paper.experiments.view import Layout, StoredConfig
from ewc_paper.figures.names import METHOD_LABELS
from ewc_paper.figures.style import LOOKS, axes, line_style, save
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.schema import Check, list_of, number, one_of, record

GRAY, CREAM = "#b9b9b9", "#f5e3b5"
LOW_LOSS = 0.25  # inside a region the loss is below this
TASK_A = "A"  # the trajectory of task A; all others have the names of methods


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    line = list_of(number(), 2)
    landscape = record(across=line, up=line, loss_a=list_of(line, 2), loss_b=list_of(line, 2))
    trajectory = record(
        way=one_of((TASK_A, "sgd", "l2", "ewc")),
        points=list_of(list_of(number(), 2, 2), 1),
        loss_a=number(),
        loss_b=number(),
    )
    return lambda row: landscape(row) if "across" in row else trajectory(row)


LAYOUT = Layout(_row)


def _rows(run: RunDirectory) -> tuple[MetricsRow | None, dict[str, MetricsRow]]:
    """Return the landscape, if it is there yet, and the trajectories so far."""
    rows = run.part("schematic").rows()
    landscape = next((row for row in rows if "across" in row), None)
    return landscape, {row["way"]: row for row in rows if "way" in row}


def _label(name: str) -> str:
    return METHOD_LABELS.get(name, "task A first")


def plot(ax: Axes, landscape: MetricsRow, trajectories: dict[str, MetricsRow]) -> None:
    """Draw regions of low loss and trajectories.

    Args:
        ax: axes to draw into.
        landscape: the row with the losses on a grid.
        trajectories: the other rows, by method or `A`.
    """
    for name, color in (("loss_b", CREAM), ("loss_a", GRAY)):
        grid = (landscape["across"], landscape["up"], np.asarray(landscape[name]))
        ax.contourf(*grid, levels=[0, LOW_LOSS], colors=[color], alpha=0.75)
        ax.contour(*grid, levels=[LOW_LOSS], colors=["0.4"], linewidths=0.6)
    for name, row in trajectories.items():
        _plot_trajectory(ax, name, row)
    if TASK_A in trajectories and not trajectories[TASK_A].get("diverged"):
        end = trajectories[TASK_A]["points"][-1]
        ax.annotate("θ*$_A$", tuple(end), xytext=(5, -14), textcoords="offset points")
    _label_region(ax, landscape, "loss_a", "low loss for A", "0.25")
    _label_region(ax, landscape, "loss_b", "low loss for B", "#7a5c00")
    ax.set_xlim(landscape["across"][0], landscape["across"][-1])
    ax.set_ylim(landscape["up"][0], landscape["up"][-1])
    ax.set_xlabel("θ₁")
    ax.set_ylabel("θ₂")
    if trajectories:
        ax.legend(frameon=False, loc="upper right")


def _plot_trajectory(ax: Axes, name: str, row: MetricsRow) -> None:
    """Plot a trajectory and, if it did not diverge, a marker at its end."""
    x, y = np.asarray(row["points"]).T
    diverged = row.get("diverged", False)
    style = (
        {**line_style(name), "linewidth": 1.8}
        if name in LOOKS
        else {"color": "0.3", "linewidth": 1}
    )
    ax.plot(x, y, label=_label(name) + (" (diverged)" if diverged else ""), **style)
    if not diverged:
        marker = LOOKS[name].marker if name in LOOKS else "*"
        ax.plot(x[-1:], y[-1:], marker=marker, color=style["color"], markersize=6)


def _label_region(ax: Axes, landscape: MetricsRow, name: str, text: str, color: str) -> None:
    """Write below the lowest point of a region, if the grid is fine enough to contain one."""
    inside = np.argwhere(np.asarray(landscape[name]) < LOW_LOSS)
    if len(inside):
        row, column = inside[0]
        x, y = landscape["across"][column], landscape["up"][row] - 0.1
        ax.text(x, y, text, ha="center", va="top", color=color)


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics; nothing if there are none yet."""
    landscape, trajectories = _rows(run)
    if landscape is None:
        return []
    ax = axes(5.0, 4.4)
    plot(ax, landscape, trajectories)
    return [save(ax, run.figures / "schematic.png")]


def table(run: RunDirectory) -> Table:
    """The loss of both tasks at the end of each trajectory."""
    table = Table("method", title="loss at the end of training")
    table.add_column("task A", justify="right")
    table.add_column("task B", justify="right")
    for name, row in _rows(run)[1].items():
        diverged = row.get("diverged", False)
        losses = ["diverged" if diverged else f"{row[loss]:.3f}" for loss in ("loss_a", "loss_b")]
        table.add_row(_label(name), *losses)
    return table
