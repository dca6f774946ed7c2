"""Views: tables and figures from run directories alone, and the progress of a run."""

import importlib
from pathlib import Path
from typing import Protocol, cast

from rich.table import Table

from ewc.runs.directory import RunDirectory
from ewc.runs.errors import RunError

EXPERIMENTS = (
    *("schematic", "learning-curves", "many-tasks", "fisher-overlap", "strength"),
    *("games", "perturbation", "recognition"),
)


class View(Protocol):
    """How one experiment is shown; each is a module here, named like the experiment."""

    def draw(self, run: RunDirectory) -> list[Path]:
        """Write the figures into the run directory and return their files."""

    def table(self, run: RunDirectory) -> Table:
        """The numbers behind the figure."""


def view_of(run: RunDirectory) -> View:
    """The view of the experiment that the run directory holds."""
    experiment = run.config().get("experiment")
    if experiment not in EXPERIMENTS:
        raise RunError(f"{run.path} holds a run of {experiment}, which has no figure")
    # Imported only now: matplotlib takes a while, and worker processes never draw.
    return cast(View, importlib.import_module(f"ewc.report.{experiment.replace('-', '_')}"))
