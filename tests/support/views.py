"""What tests of tables and figures share."""

from typing import Any

from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

DIVERGED: dict[str, Any] = {"diverged": True}  # in a row, of which accuracies mean nothing


def as_text(table: Table) -> str:
    """Return a table as it is printed on a wide terminal."""
    console = Console(width=200, record=True)
    console.print(table)
    return console.export_text()


def cells(table: Table) -> list[str]:
    """Return all cells of a table, column by column."""
    return [str(cell) for column in table.columns for cell in column.cells]


def assert_only_diverged(table: Table, said: list[str]) -> None:
    """A network that diverged is named in these cells, and its accuracy of 9.8 % in none."""
    assert [cell for cell in cells(table) if "diverged" in cell] == said
    assert not any("9.8" in cell for cell in cells(table))


def assert_markers_are_whole(ax: Axes) -> None:
    """No marker reaches over the top of the axes, where it would be cut."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    for line in ax.lines:
        radius = (line.get_markersize() + line.get_markeredgewidth()) / 2 * figure.dpi / 72
        tops = ax.transData.transform(line.get_xydata())[:, 1] + radius
        assert tops.max() <= ax.bbox.y1 or not line.get_clip_on()
