"""Figure 1: the ways from task A's solution, over the regions of low loss of tasks A and B."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from ewc_paper.figures.names import METHODS
from ewc_paper.figures.style import LOOKS, axes, line, save
from ewc_paper.runs.directory import Row, RunDirectory

GRAY, CREAM = "#b9b9b9", "#f5e3b5"
LOW_LOSS = 0.25  # inside a region the loss is below this


def _rows(run: RunDirectory) -> tuple[Row | None, dict[str, Row]]:
    """The landscape, if the run has come to it, and the ways so far."""
    rows = run.part("schematic").rows()
    landscape = next((row for row in rows if "across" in row), None)
    return landscape, {row["way"]: row for row in rows if "way" in row}


def _name(way: str, row: Row) -> str:
    return METHODS.get(way, "task A first") + (" (diverged)" if row.get("diverged") else "")


def plot(ax: Axes, landscape: Row, ways: dict[str, Row]) -> None:
    """Draw regions and ways into the axes."""
    for name, color in (("loss_b", CREAM), ("loss_a", GRAY)):
        grid = (landscape["across"], landscape["up"], np.asarray(landscape[name]))
        ax.contourf(*grid, levels=[0, LOW_LOSS], colors=[color], alpha=0.75)
        ax.contour(*grid, levels=[LOW_LOSS], colors=["0.4"], linewidths=0.6)
    for way, row in ways.items():
        x, y = np.asarray(row["points"]).T
        look = {**line(way), "linewidth": 1.8} if way in LOOKS else {"color": "0.3", "linewidth": 1}
        ax.plot(x, y, label=_name(way, row), **look)
        if not row.get("diverged"):
            marker = LOOKS[way][2] if way in LOOKS else "*"
            ax.plot(x[-1:], y[-1:], marker=marker, color=look["color"], markersize=6)
    if "A" in ways and not ways["A"].get("diverged"):
        x, y = ways["A"]["points"][-1]
        ax.annotate("θ*$_A$", (x, y), xytext=(-26, 2), textcoords="offset points")
    _label_region(ax, landscape, "loss_a", "low loss for A", "0.25")
    _label_region(ax, landscape, "loss_b", "low loss for B", "#7a5c00")
    ax.set_xlim(landscape["across"][0], landscape["across"][-1])
    ax.set_ylim(landscape["up"][0], landscape["up"][-1])
    ax.set_xlabel("θ₁")
    ax.set_ylabel("θ₂")
    if ways:
        ax.legend(frameon=False, loc="upper right")


def _label_region(ax: Axes, landscape: Row, name: str, text: str, color: str) -> None:
    """Write just under the lowest point of a region, if the grid is fine enough to have one."""
    inside = np.argwhere(np.asarray(landscape[name]) < LOW_LOSS)
    if len(inside):
        row, column = inside[0]
        place = landscape["across"][column], landscape["up"][row] - 0.1
        ax.text(*place, text, ha="center", va="top", color=color)


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics; none before there are any."""
    landscape, ways = _rows(run)
    if landscape is None:
        return []
    ax = axes(5.0, 4.4)
    plot(ax, landscape, ways)
    return [save(ax, run.figures / "schematic.png")]


def table(run: RunDirectory) -> Table:
    """The loss of both tasks at the end of each way."""
    table = Table("method", title="loss at the end")
    table.add_column("task A", justify="right")
    table.add_column("task B", justify="right")
    for way, row in _rows(run)[1].items():
        diverged = row.get("diverged", False)
        losses = ["diverged" if diverged else f"{row[name]:.3f}" for name in ("loss_a", "loss_b")]
        table.add_row(METHODS.get(way, "task A first"), *losses)
    return table
