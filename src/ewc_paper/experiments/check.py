"""Checks that a run directory holds what its figures need, before anything is drawn.

A run directory may be damaged, or come from somebody else. An error is one line that names the file
and what is wrong with it. Sizes are limited, so that drawing always comes to an end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ewc_paper.errors import RunError, fitting_files
from ewc_paper.experiments.view import Layout, StoredConfig, View, view_of
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.files import refuse_link, refuse_links
from ewc_paper.runs.schema import Check, SchemaError


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
    """Raise RunError if a file of the run is damaged, missing, or not what its view reads."""
    config = run.config()
    layout = view_of(run).LAYOUT
    _apply(layout.config, config, f"{run.path}/config.json")
    for place in sorted(run.path.glob("parts/*/")):
        if any(place.glob("*.jsonl")) or (place / "config.json").exists():
            _check_part(RunDirectory(place), layout, config)


def _check_part(part: RunDirectory, layout: Layout, run_config: StoredConfig) -> None:
    part.check()
    config = part.config()
    _apply(layout.part, config, f"{part.path}/config.json")
    _apply(layout.part_name(config), part.name, str(part.path))
    row_check = layout.row(run_config, config)
    for line, row in enumerate(part.rows(), start=1):
        _apply(row_check, row, f"line {line} of {part.path}/metrics.jsonl")
    for pattern, check_file in layout.files.items():
        for file in part.path.glob(pattern):
            check_file(file)


def _apply(check: Check, value: Any, source: str) -> None:
    """Run a check; an error names the source of the value."""
    try:
        check(value)
    except SchemaError as error:
        raise RunError(f"{source} cannot be drawn: {error}") from None
