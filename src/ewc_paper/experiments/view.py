"""Views: tables and figures, drawn from run directories alone."""

import importlib
from pathlib import Path
from typing import Protocol, cast

from rich.table import Table

from ewc_paper.errors import RunError
from ewc_paper.experiments import SUMMARIES
from ewc_paper.runs.directory import RunDirectory


class View(Protocol):
    """How one experiment is shown; each is the module `figure` in the experiment's folder."""

    def draw(self, run: RunDirectory) -> list[Path]:
        """Write the figures into the run directory and return their files."""

    def table(self, run: RunDirectory) -> Table:
        """The numbers behind the figure."""


def view_of(run: RunDirectory) -> View:
    """The view of the experiment that the run directory holds."""
    experiment = run.config().get("experiment")
    if experiment not in SUMMARIES:
        raise RunError(f"{run.path} holds a run of {experiment}, which has no figure")
    # Imported only now: matplotlib takes a while, and worker processes never draw.
    module = f"ewc_paper.experiments.{experiment.replace('-', '_')}.figure"
    return cast(View, importlib.import_module(module))
