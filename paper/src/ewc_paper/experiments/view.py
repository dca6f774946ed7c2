"""How an experiment is shown: its table and figures, drawn from the run directory alone.

A run directory may be damaged, or come from somebody else, so all that a view reads is checked
before anything is drawn. An error is one line that names the file and what is wrong with it. Sizes
are limited, so that drawing always comes to an end.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from rich.table import Table

from ewc_paper.errors import Damaged, RunError, fitting_files
from ewc_paper.experiments import SUMMARIES, module_name
from ewc_paper.figures.panel import Figure
from ewc_paper.runs.checksums import SUMS, read_sums
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.files import refuse_link, refuse_links
from ewc_paper.runs.schema import Check, SchemaError, anything

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
    """How one experiment is shown: its module, or `figure` in its folder."""

    LAYOUT: Layout
    PAPER: Paper

    def figures(self, run: RunDirectory) -> list[Figure]:
        """Return what the figures show, as data; this is where it is computed."""

    def table(self, run: RunDirectory) -> Table:
        """Return the numbers in the figures."""

    def result(self, run: RunDirectory) -> str:
        """Return the result in one sentence, computed from the run; empty if there is none yet."""


@runtime_checkable
class DrawsItself(View, Protocol):
    """What a view adds whose files are more than its figures as they are arranged."""

    def draw(self, run: RunDirectory, suffix: str = "png") -> list[Path]:
        """Draw the figures into files of a format in the run directory, and return the files."""


@runtime_checkable
class BestView(View, Protocol):
    """What a view adds if a sweep of its experiment has a figure of the trials that were chosen.

    All functions take the chosen runs by what they were chosen for, as `Experiment.points` names
    it.
    """

    def best_figures(self, chosen: Mapping[str, Sequence[RunDirectory]]) -> list[Figure]:
        """Return what the figures show, as data."""

    def best_table(self, chosen: Mapping[str, Sequence[RunDirectory]]) -> Table:
        """Return the numbers in the figures."""

    def best_result(self, chosen: Mapping[str, Sequence[RunDirectory]]) -> str:
        """Return the result in one sentence; empty if there is none yet."""


def seed_name(part: RunDirectory) -> str:
    """Return the seed of a part as a label; the part's name if its config has none."""
    config = part.config()
    seed = config.get("seed", (config.get("recipe") or {}).get("seed"))
    return part.name if seed is None else f"seed {seed}"


def stored_experiment(run: RunDirectory) -> str:
    """Return the name of the experiment that is in the run directory; refuses an unknown one."""
    name = run.config().get("experiment")
    if not isinstance(name, str) or name not in SUMMARIES:
        said = f"a run of {name}" if isinstance(name, str) else "a run of no experiment"
        raise RunError(f"{run.path} holds {said}: expected one of {', '.join(SUMMARIES)}")
    return name


def view_of(run: RunDirectory) -> View:
    """Return the view of the experiment that is in the run directory."""
    module = module_name(stored_experiment(run), "figure")
    return cast(View, importlib.import_module(module))


def draw(view: View, run: RunDirectory, suffix: str = "png") -> list[Path]:
    """Draw the figures of a run into files of a format in its directory, and return the files."""
    if isinstance(view, DrawsItself):
        return view.draw(run, suffix)
    # Imported only here: matplotlib takes a while to import, and worker processes never draw.
    from ewc_paper.figures.plot import draw_figures

    return draw_figures(view.figures(run), run.figures, suffix)


@contextmanager
def drawable(run: RunDirectory) -> Iterator[View]:
    """Give the view of a run after checking its files; raise RunError if drawing fails anyway."""
    view = view_of(run)
    refuse_link(run.figures)
    refuse_links(run.figures)
    with fitting_files(run.path, "cannot be drawn"):
        check_run(run)
        yield view


def check_run(run: RunDirectory) -> None:
    """Raise RunError if a file of the run is damaged, lost, or not what its view reads."""
    config = run.config()
    _apply(view_of(run).LAYOUT.config, config, f"{run.path}/config.json")
    run.check()
    for part in begun_parts(run):
        check_part(run, part)
    _check_listed(run)


def begun_parts(run: RunDirectory) -> list[RunDirectory]:
    """Return the parts that hold a file of a run, also those that have lost their options."""
    parts = (RunDirectory(place) for place in sorted(run.path.glob("parts/*/")))
    return [part for part in parts if part.begun]


def check_part(run: RunDirectory, part: RunDirectory) -> None:
    """Raise RunError if a file of a part is damaged, lost, or not what its view reads."""
    if not part.name.isprintable():
        raise Damaged(f"{part.path} is no part of a run: its name cannot be shown")
    part.check()
    layout, run_config, config = view_of(run).LAYOUT, run.config(), part.config()
    _apply(layout.part, config, f"{part.path}/config.json")
    _apply(layout.part_name(config), part.name, str(part.path))
    row_check, place = layout.row(run_config, config), f"{part.path}/metrics.jsonl"
    for line, row in enumerate(part.rows(), start=1):
        _apply(row_check, row, f"line {line} of {place}")
    for pattern, check_file in layout.files.items():
        for file in part.path.glob(pattern):
            check_file(file)


def _check_listed(run: RunDirectory) -> None:
    """Refuse a part that was added to a finished run, whose checksums list all its parts."""
    sums = read_sums(run.path) or {}
    for part in begun_parts(run):
        if sums and f"parts/{part.name}/config.json" not in sums:
            raise Damaged(f"{part.path} is no part of this run: {SUMS} does not list it")


def _apply(check: Check, value: Any, source: str) -> None:
    """Run a check; an error names the source of the value."""
    try:
        check(value)
    except SchemaError as error:
        raise RunError(f"{source} cannot be drawn: {error}") from None
