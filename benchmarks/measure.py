"""How benchmarks measure time and memory, print their tables, and import other libraries.

Fair timing: one thread, all workloads take turns, and the best of several rounds counts.

Time is that of the processor in this process, so that waiting for another program does not count.
Such a program can still make a round slower, through caches and shared cores: the best round is the
one that was disturbed least. Because the workloads take turns, a slow minute affects all of them.
"""

import importlib
import math
import platform
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as Grid

Workload = Callable[[], object]


def one_thread() -> None:
    """Use one core, and take denormal numbers as zero, which are slow on some processors."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def seconds(workload: Workload) -> float:
    """Return the processor's time of one call."""
    start = time.process_time()
    workload()
    return time.process_time() - start


def best_seconds(
    workloads: Mapping[str, Workload], rounds: int, *, limits: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the shortest time of each workload.

    Args:
        workloads: by name, what to measure.
        rounds: number of rounds; each workload is called once per round.
        limits: by name, the seconds after which a workload is left out of the remaining rounds.
    """
    if rounds < 1:
        raise ValueError(f"expected rounds >= 1, got {rounds}")
    times: dict[str, list[float]] = {name: [] for name in workloads}
    limits = limits or {}
    for _ in range(rounds):
        for name, workload in workloads.items():
            if sum(times[name]) < limits.get(name, math.inf):
                times[name].append(seconds(workload))
    return {name: min(measured) for name, measured in times.items()}


def ratios(measured: Mapping[str, float]) -> dict[str, float]:
    """Return every time as a multiple of the first."""
    first = next(iter(measured.values()))
    return {name: value / first for name, value in measured.items()}


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


class MissingLibrary(ImportError):
    """A library of the extra `bench` is not installed."""


def library(name: str) -> ModuleType:
    """Import a module of another library; the error says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts of it that are not used here
            if name.split(".")[0] in ("avalanche", "laplace"):
                _import_torchvision()
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"{error.name} is not installed: `make bench` installs it "
            "(the extra bench), and --ours measures without other libraries"
        ) from error


# Kept as long as the process runs: an operator is removed together with its library.
_declared = torch.library.Library("torchvision", "FRAGMENT")


def _import_torchvision() -> None:
    """Import torchvision, whose CUDA build fails to find its operators with a CPU build of torch.

    Two libraries import torchvision without using its operators, so it is enough to declare them.
    """
    while True:
        try:
            importlib.import_module("torchvision")
            return
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            _declared.define(f"{missing[1]}(Tensor boxes, Tensor scores, float iou) -> Tensor")


def bytes_in_a_process(module: str, what: str) -> int:
    """Return what `python -m MODULE WHAT` prints: Linux records one peak of memory per process."""
    command = [sys.executable, "-m", module, what]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def status_bytes(field: str) -> int:
    """Return a field of /proc/self/status. (`getrusage` would include the peak of the parent.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
