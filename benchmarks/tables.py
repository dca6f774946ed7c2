"""Results as tables of plain values, which are printed and stored as JSON."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as Grid

Value = float | int | str | None
ResultRow = Mapping[str, Value]  # by column


@dataclass(frozen=True)
class ResultTable:
    """Rows with the same columns, and notes that explain the columns."""

    title: str
    rows: Sequence[ResultRow]
    notes: Sequence[str] = field(default_factory=tuple)


# How the values of a column are formatted, by its name, which includes the unit.
FORMATS: dict[str, Callable[[Any], str]] = {
    "samples": "{:,}".format,
    "milliseconds": "{:,.2f}".format,
    "at the limit": "{:,.2f}".format,
    "multiple": "{:.2f}x".format,
    "difference": "{:.0e}".format,
    "megabytes": "{:,.0f}".format,
    "bytes per parameter": "{:.2f}".format,
    "samples per second": "{:,.0f}".format,
    "steps per second": "{:,.0f}".format,
}


def format_value(column: str, value: Value) -> str:
    """Format a value of a column; empty for None."""
    if value is None:
        return ""
    return value if isinstance(value, str) else FORMATS.get(column, str)(value)


def print_table(table: ResultTable, console: Console) -> None:
    """Print the title, the values and the notes."""
    console.print(table.title, style="bold", markup=False, highlight=False)
    grid = Grid()
    for column in table.rows[0]:
        number = any(isinstance(row[column], int | float) for row in table.rows)
        grid.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        grid.add_row(*(format_value(column, value) for column, value in row.items()))
    console.print(grid)
    for note in table.notes:
        console.print(f"  {note}", markup=False, highlight=False)
    console.print()


def machine() -> dict[str, Value]:
    """Return the machine and the versions with which the results were measured."""
    return {
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def as_json(tables: Sequence[ResultTable]) -> dict[str, Any]:
    """Return the tables and the machine as values that can be stored as JSON."""
    return {"machine": machine(), "tables": [asdict(table) for table in tables]}
