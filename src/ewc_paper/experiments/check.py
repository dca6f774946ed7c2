"""Whether a run directory holds what its figures need: asked of every file before any is drawn.

A run directory may be damaged, or come from anybody. What is wrong with it is one line that names
the file; sizes are bounded, so that nothing is drawn for ever.
"""

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ewc.perturbation import NoiseShape
from ewc.step_size import How
from ewc_paper.errors import RunError
from ewc_paper.experiments.view import View, view_of
from ewc_paper.figures.names import ARMS, METHODS
from ewc_paper.figures.schema import (
    Check,
    Wrong,
    anything,
    by_name,
    flag,
    kinds,
    list_of,
    number,
    one_of,
    optional,
    record,
    text,
    whole,
)
from ewc_paper.runs.directory import Row, RunDirectory
from ewc_paper.runs.files import refuse_link, refuse_links

MOST_PANELS = 100  # a figure of more would take minutes
MOST_CONTEXTS = 1000
MOST_SEGMENTS = 10_000

Config = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """What the view of an experiment reads: of the run's config, a part's config and its rows."""

    row: Callable[[Config, Config], Check]
    config: Check = anything
    part: Check = anything


def _accuracies(config: Config, part: Config) -> Check:
    tasks = config.get("tasks", MOST_SEGMENTS)
    values = list_of(number(0, 1), 1, tasks)
    fields = record(
        task=whole(0, tasks - 1),
        epoch=number(0),
        task_ended=flag,
        accuracy=values,
        validation=optional(values),
    )

    def check(row: Row) -> None:
        fields(row)
        record(accuracy=list_of(anything, row["task"] + 1, row["task"] + 1))(row)

    return check


def _overlap(config: Config, part: Config) -> Check:
    overlap, accuracies = record(overlap=list_of(number(), 1)), _accuracies(config, part)
    return lambda row: overlap(row) if "overlap" in row else accuracies(row)


def _two_parameters(config: Config, part: Config) -> Check:
    line = list_of(number(), 2)
    landscape = record(across=line, up=line, loss_a=list_of(line, 2), loss_b=list_of(line, 2))
    points = list_of(list_of(number(), 2, 2), 1)
    way = record(
        way=one_of(("A", "sgd", "l2", "ewc")), points=points, loss_a=number(), loss_b=number()
    )
    return lambda row: landscape(row) if "across" in row else way(row)


def _context(name: str) -> None:
    one_of([str(number) for number in range(MOST_CONTEXTS)])(name)


def _playing(config: Config, part: Config) -> Check:
    game = one_of(part["games"])

    def each(item: Check) -> Check:
        return record(**dict.fromkeys(part["games"], item))

    return kinds(
        "kind",
        test=record(
            step=whole(),
            segment=whole(0, len(part["schedule"])),
            steps_in=by_name(game, whole()),
            scores=each(list_of(number(), 1)),
            normalized=each(number()),
            agreement=by_name(game, number()),
            regret=by_name(game, number()),
        ),
        train=record(step=whole(), game=game, recognized=by_name(_context, whole(1))),
    )


def _noise(config: Config, part: Config) -> Check:
    scores = list_of(number(), 1)
    return kinds(
        "kind", noise=record(shape=one_of(get_args(NoiseShape)), scale=number(0), scores=scores)
    )


def _recognition(config: Config, part: Config) -> Check:
    runs = list_of(list_of(whole(), 2, 2), 1)
    return record(
        game=one_of(config["games"]),
        steps=whole(1),
        observed=runs,
        decided=runs,
        milliseconds=number(0),
    )


LAYOUTS = {
    "schematic": Layout(_two_parameters),
    "learning-curves": Layout(
        _accuracies,
        config=record(tasks=whole(1, MOST_PANELS), epochs=number(0)),
        part=record(recipe=optional(record(method=optional(one_of(METHODS))))),
    ),
    "many-tasks": Layout(_accuracies, part=record(label=one_of(METHODS), combination=whole())),
    "fisher-overlap": Layout(_overlap, part=record(square=whole(1))),
    "strength": Layout(
        _accuracies,
        config=record(tasks=whole(1)),
        part=record(recipe=record(tasks=whole(1), how=one_of(get_args(How)), strength=number(0))),
    ),
    "games": Layout(
        _playing,
        part=record(
            arm=one_of(ARMS),
            seed=whole(),
            games=list_of(text, 1, MOST_PANELS),
            schedule=list_of(text, 1, MOST_SEGMENTS),
            settings=record(segment_steps=whole(1), ewc_start=whole()),
        ),
    ),
    "perturbation": Layout(_noise, config=record(game=text)),
    "recognition": Layout(_recognition, config=record(games=list_of(text, 1, MOST_CONTEXTS))),
}


@contextmanager
def drawable(run: RunDirectory) -> Iterator[View]:
    """The view of a run whose files are checked; what fails all the same is one line too."""
    view = view_of(run)
    refuse_link(run.figures)
    refuse_links(run.figures)
    try:
        check_run(run)
        yield view
    except (RunError, OSError):
        raise
    except Exception as error:
        raise RunError(
            f"{run.path} cannot be drawn: its files do not fit together "
            f"({type(error).__name__}: {error})"
        ) from error


def check_run(run: RunDirectory) -> None:
    """Raise if a file of the run is damaged, lost, or not what its view reads."""
    config = run.config()
    layout = LAYOUTS[config["experiment"]]
    _apply(layout.config, config, f"{run.path}/config.json")
    for place in sorted(run.path.glob("parts/*/")):
        part = RunDirectory(place)
        if any(place.glob("*.jsonl")) or (place / "config.json").exists():
            _check_part(part, layout, config)


def _check_part(part: RunDirectory, layout: Layout, config: Config) -> None:
    part.check()
    own = part.config()
    _apply(layout.part, own, f"{part.path}/config.json")
    if config["experiment"] == "learning-curves":  # whose parts are named after their methods
        method = (own.get("recipe") or {}).get("method")
        _apply(one_of([method] if method else METHODS), part.name, str(part.path))
    row_check = layout.row(config, own)
    for line, row in enumerate(part.rows(), start=1):
        _apply(row_check, row, f"line {line} of {part.path}/metrics.jsonl")
    for clip in part.path.glob("clips/*.npz"):
        _check_clip(clip)


def _apply(check: Check, value: Any, source: str) -> None:
    try:
        check(value)
    except Wrong as wrong:
        raise RunError(f"{source} cannot be drawn: {wrong}") from None


def _check_clip(file: Path) -> None:
    try:
        frames = np.load(file)["frames"]
    except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"{file} is damaged: expected frames, got {error}") from error
    if frames.ndim != 3 or frames.dtype != np.uint8 or frames.size == 0:
        raise RunError(
            f"{file} is damaged: expected grey frames [time, height, width], got {frames.dtype} "
            f"of shape {frames.shape}"
        )
