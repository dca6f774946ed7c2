"""Results as rows of plain values, printed as a table and stored as JSON."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as Grid

Value = float | int | str | None
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Table:
    """Rows with the same columns; a note says what a reader must know to judge them."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple)


# How a column is shown, by its name; the names carry the units.
FORMATS: dict[str, Callable[[Any], str]] = {
    "samples": "{:,}".format,
    "milliseconds": "{:,.2f}".format,
    "multiple": "{:.2f}x".format,
    "difference": "{:.0e}".format,
    "megabytes": "{:,.0f}".format,
    "samples a second": "{:,.0f}".format,
    "steps a second": "{:,.0f}".format,
    "share": "{:.1%}".format,
}


def shown(column: str, value: Value) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else FORMATS.get(column, str)(value)


def print_table(table: Table, console: Console) -> None:
    console.print(table.title, style="bold", markup=False, highlight=False)
    grid = Grid()
    for column in table.rows[0]:
        number = any(isinstance(row[column], int | float) for row in table.rows)
        grid.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        grid.add_row(*(shown(column, value) for column, value in row.items()))
    console.print(grid)
    for note in table.notes:
        console.print(f"  {note}", markup=False, highlight=False)
    console.print()


def machine() -> dict[str, Value]:
    """Where and with what the numbers were taken."""
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


def as_json(tables: Sequence[Table]) -> dict[str, Any]:
    return {"machine": machine(), "tables": [asdict(table) for table in tables]}
