"""Figure 1: trajectories from task A's solution, over the regions of low loss of tasks A and B."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from contourpy import FillType, contour_generator
from matplotlib.axes import Axes
from matplotlib.path import Path as Outline
from rich.table import Table

from ewc_paper.experiments.view import Layout, Paper, StoredConfig
from ewc_paper.figures.names import METHOD_LABELS
from ewc_paper.figures.panel import Figure, Note, Panel, Region, Series
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.style import LOOKS, SOLID, Look, axes, save
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.schema import Check, list_of, number, one_of, record

GRAY, CREAM = "#b9b9b9", "#f5e3b5"
LOW_LOSS = 0.25  # inside a region the loss is below this
TASK_A_LOOK = Look("#4d4d4d", SOLID, "*", 1.0)
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

PAPER = Paper(
    "figure 1",
    "After task A, plain gradient steps on B leave A's region of low error. An equal pull on every "
    "weight (L2) learns too little of B. EWC finds a solution of B inside A's region.",
    "A drawing, not a measurement: two overlapping regions, gray for A and cream for B, and three "
    "arrows from A's solution. That of SGD ends in B's region alone, that of L2 between the "
    "regions, and that of EWC where they overlap.",
)


def _rows(run: RunDirectory) -> tuple[MetricsRow | None, dict[str, MetricsRow]]:
    """Return the landscape, if it is there yet, and the trajectories so far."""
    rows = run.part("schematic").rows()
    landscape = next((row for row in rows if "across" in row), None)
    return landscape, {row["way"]: row for row in rows if "way" in row}


def _label(name: str) -> str:
    return METHOD_LABELS.get(name, "task A first")


def panel(landscape: MetricsRow, trajectories: dict[str, MetricsRow]) -> Panel:
    """Return regions of low loss and trajectories.

    Args:
        landscape: the row with the losses on a grid.
        trajectories: the other rows, by method or `A`.
    """
    labels = (
        *_region_label(landscape, "loss_a", "low loss for A", "#404040"),
        *_region_label(landscape, "loss_b", "low loss for B", "#7a5c00"),
    )
    return Panel(
        "θ₁",
        "θ₂",
        series=[_trajectory(name, row) for name, row in trajectories.items()],
        regions=[
            Region("low loss for B", CREAM, _rings(landscape, "loss_b")),
            Region("low loss for A", GRAY, _rings(landscape, "loss_a")),
        ],
        notes=[*labels, *_start(trajectories)],
        x_limits=(landscape["across"][0], landscape["across"][-1]),
        y_limits=(landscape["up"][0], landscape["up"][-1]),
    )


def _rings(landscape: MetricsRow, name: str) -> list[list[tuple[float, float]]]:
    """Return the borders of the regions in which a loss is low."""
    across, up, loss = landscape["across"], landscape["up"], np.asarray(landscape[name])
    grid = contour_generator(across, up, loss, fill_type=FillType.OuterCode)
    areas, codes = cast(tuple[list[Any], list[Any]], grid.filled(0, LOW_LOSS))
    starts = [np.flatnonzero(code == Outline.MOVETO) for code in codes]
    return [
        ring.tolist()
        for area, at in zip(areas, starts, strict=True)
        for ring in np.split(area, at[1:])
    ]


def _trajectory(name: str, row: MetricsRow) -> Series:
    """Return a trajectory with, if it did not diverge, a marker at its end."""
    x, y = np.asarray(row["points"], dtype=float).T.tolist()
    diverged = row.get("diverged", False)
    look = LOOKS[name]._replace(width=1.8) if name in LOOKS else TASK_A_LOOK
    label = _label(name) + (" (diverged)" if diverged else "")
    return Series(label, look, x, {"": y}, "none" if diverged else "end")


def _start(trajectories: dict[str, MetricsRow]) -> Iterator[Note]:
    """Yield the name of task A's solution, where the other trajectories begin."""
    if TASK_A in trajectories and not trajectories[TASK_A].get("diverged"):
        x, y = trajectories[TASK_A]["points"][-1]
        yield Note("θ*A", x + 0.25, y - 0.1, "#222222")


def _region_label(landscape: MetricsRow, name: str, text: str, color: str) -> Iterator[Note]:
    """Yield a text below the lowest point of a region, if the grid is fine enough to have one."""
    inside = np.argwhere(np.asarray(landscape[name]) < LOW_LOSS)
    if len(inside):
        row, column = inside[0]
        yield Note(text, landscape["across"][column], landscape["up"][row] - 0.1, color)


def figures(run: RunDirectory) -> list[Figure]:
    """Return the trajectories over the losses; nothing if there are none yet."""
    landscape, trajectories = _rows(run)
    if landscape is None:
        return []
    title = "From the solution of task A to a solution of task B"
    caption = "Each line is the way of the two parameters while B is trained; a marker is its end."
    return [Figure("schematic", title, caption, [panel(landscape, trajectories)])]


def plot(ax: Axes, landscape: MetricsRow, trajectories: dict[str, MetricsRow]) -> None:
    """Draw the panel of a landscape and its trajectories into the axes."""
    plot_panel(ax, panel(landscape, trajectories))
    if trajectories:
        ax.legend(frameon=False, loc="upper right")


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figure from its metrics; nothing if there are none yet."""
    landscape, trajectories = _rows(run)
    if landscape is None:
        return []
    ax = axes(5.0, 4.4)
    plot(ax, landscape, trajectories)
    return [save(ax, run.figures / f"schematic.{kind}")]


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
