"""Figure 1: the ways from task A's solution, over the regions of low loss of tasks A and B."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from ewc.runs.directory import Row, RunDirectory

from .names import METHODS
from .style import COLORS, axes, save

GRAY, CREAM = "#b9b9b9", "#f5e3b5"
LOW_LOSS = 0.25  # inside a region the loss is below this


def _rows(run: RunDirectory) -> tuple[Row, dict[str, Row]]:
    rows = run.part("schematic").rows()
    landscape = next(row for row in rows if "across" in row)
    return landscape, {row["way"]: row for row in rows if "way" in row}


def plot(ax: Axes, landscape: Row, ways: dict[str, Row]) -> None:
    """Draw regions and ways into the axes."""
    for name, color in (("loss_b", CREAM), ("loss_a", GRAY)):
        grid = (landscape["across"], landscape["up"], np.asarray(landscape[name]))
        ax.contourf(*grid, levels=[0, LOW_LOSS], colors=[color], alpha=0.75)
        ax.contour(*grid, levels=[LOW_LOSS], colors=["0.4"], linewidths=0.6)
    for way, row in ways.items():
        x, y = np.asarray(row["points"]).T
        color = COLORS.get(way, "0.3")
        ax.plot(
            x,
            y,
            color=color,
            linewidth=1.8 if way != "A" else 1,
            label=METHODS.get(way, "task A first"),
        )
        ax.plot(x[-1:], y[-1:], marker="o" if way != "A" else "*", color=color, markersize=6)
    x, y = ways["A"]["points"][-1]
    ax.annotate("θ*$_A$", (x, y), xytext=(-26, 2), textcoords="offset points")
    ax.text(*_bottom(landscape, "loss_a"), "low loss for A", ha="center", va="top", color="0.25")
    ax.text(*_bottom(landscape, "loss_b"), "low loss for B", ha="center", va="top", color="#7a5c00")
    ax.set_xlabel("θ₁")
    ax.set_ylabel("θ₂")
    ax.legend(frameon=False, loc="upper right")


def _bottom(landscape: Row, name: str) -> tuple[float, float]:
    """A point just under the lowest point of a region."""
    row, column = np.argwhere(np.asarray(landscape[name]) < LOW_LOSS)[0]
    return landscape["across"][column], landscape["up"][row] - 0.1


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics."""
    ax = axes(5.0, 4.4)
    plot(ax, *_rows(run))
    return [save(ax, run.figures / "schematic.png")]


def table(run: RunDirectory) -> Table:
    """The loss of both tasks at the end of each way."""
    table = Table("method", title="loss at the end")
    table.add_column("task A", justify="right")
    table.add_column("task B", justify="right")
    for way, row in _rows(run)[1].items():
        table.add_row(
            METHODS.get(way, "task A first"), f"{row['loss_a']:.3f}", f"{row['loss_b']:.3f}"
        )
    return table
