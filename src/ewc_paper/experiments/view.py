"""How an experiment is shown: its table and figures, drawn from the run directory alone."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from rich.table import Table

from ewc_paper.errors import RunError
from ewc_paper.experiments import SUMMARIES
from ewc_paper.figures.panel import Figure
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import Check, anything

MAX_PANELS = 100  # a figure with more would take minutes to draw
MAX_SEGMENTS = 10_000

StoredConfig = dict[str, Any]  # a config.json


@dataclass(frozen=True)
class Layout:
    """What a view reads from a run directory; all of it is checked before anything is drawn.

    Args:
        row: takes the config of the run and of a part, and returns the check of the part's rows.
        config: check of the run's config.
        part: check of each part's config.
        part_name: takes the config of a part, and returns the check of the part's name.
        files: by glob pattern, the check of other files of a part, which raises RunError.
    """

    row: Callable[[StoredConfig, StoredConfig], Check]
    config: Check = anything
    part: Check = anything
    part_name: Callable[[StoredConfig], Check] = lambda part: anything
    files: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Paper:
    """What the paper says, next to which a run is shown.

    Args:
        place: the paper's figure or section; also where the experiment is not in the paper.
        claim: what it claims, in our words.
        shows: what is seen in its figure, in our words, since the figure is not ours to copy.
    """

    place: str
    claim: str
    shows: str


class View(Protocol):
    """How one experiment is shown: the module `figure` in the experiment's folder."""

    LAYOUT: Layout
    PAPER: Paper

    def figures(self, run: RunDirectory) -> list[Figure]:
        """Return what the figures show, as data; this is where it is computed."""

    def draw(self, run: RunDirectory, kind: str = "png") -> list[Path]:
        """Draw the figures into files of a kind in the run directory, and return the files."""

    def table(self, run: RunDirectory) -> Table:
        """Return the numbers in the figures."""


@runtime_checkable
class BestView(View, Protocol):
    """What a view adds if a sweep of its experiment has a figure of the trials that were chosen.

    All functions take the chosen runs by what they were chosen for, as `Experiment.points` names
    it.
    """

    def best_figures(self, chosen: Mapping[str, Sequence[RunDirectory]]) -> list[Figure]:
        """Return what the figures show, as data."""

    def draw_best(
        self, chosen: Mapping[str, Sequence[RunDirectory]], directory: Path, kind: str = "png"
    ) -> list[Path]:
        """Write the figures into a directory and return their files."""

    def best_table(self, chosen: Mapping[str, Sequence[RunDirectory]]) -> Table:
        """Return the numbers in the figures."""


def seed_name(part: RunDirectory) -> str:
    """Return the seed of a part as a label; the part's name if its config has none."""
    config = part.config()
    seed = config.get("seed", (config.get("recipe") or {}).get("seed"))
    return part.name if seed is None else f"seed {seed}"


def view_of(run: RunDirectory) -> View:
    """Return the view of the experiment that is in the run directory."""
    experiment = run.config().get("experiment")
    if not isinstance(experiment, str) or experiment not in SUMMARIES:
        raise RunError(f"{run.path} holds a run of {experiment}, which has no figure")
    # Imported only here: matplotlib takes a while to import, and worker processes never draw.
    module = f"ewc_paper.experiments.{experiment.replace('-', '_')}.figure"
    return cast(View, importlib.import_module(module))
