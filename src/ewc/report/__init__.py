"""Views: tables and figures from run directories alone, and the progress of a run."""

from pathlib import Path
from typing import Protocol

from rich.table import Table

from ewc.runs.directory import RunDirectory
from ewc.runs.errors import RunError

from . import fisher_overlap, learning_curves, many_tasks, schematic, strength


class View(Protocol):
    """How one experiment is shown."""

    def draw(self, run: RunDirectory) -> list[Path]:
        """Write the figures into the run directory and return their files."""

    def table(self, run: RunDirectory) -> Table:
        """The numbers behind the figure."""


VIEWS: dict[str, View] = {
    "fisher-overlap": fisher_overlap,
    "learning-curves": learning_curves,
    "many-tasks": many_tasks,
    "schematic": schematic,
    "strength": strength,
}


def view_of(run: RunDirectory) -> View:
    """The view of the experiment that the run directory holds."""
    experiment = run.config().get("experiment")
    if experiment not in VIEWS:
        raise RunError(f"{run.path} holds a run of {experiment}, which has no figure")
    return VIEWS[experiment]
