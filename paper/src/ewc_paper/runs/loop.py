"""Runs something to its end: its rows are written to the metrics, its states to checkpoints."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ewc_paper.errors import Interrupted, RunError
from ewc_paper.runs.directory import START_AGAIN, MetricsRow, RunDirectory


class Resumable(Protocol):
    """Something that runs in pieces, and can be saved after each piece and resumed from there."""

    @property
    def progress(self) -> float:
        """Fraction that is done, from 0 to 1."""

    def run(self) -> Iterator[MetricsRow | None]:
        """Continue to the end; yield after each piece, with a row if there is one to record."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on: tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""


@runtime_checkable
class KeepsFiles(Protocol):
    """What a Resumable adds if it has data of its own that is too large for every checkpoint.

    The data is in files in the run directory, and a state only refers to them.
    """

    def keep_in(self, directory: Path) -> None:
        """Keep the files in this directory; called once, before any state is loaded."""

    @property
    def needs_saving(self) -> bool:
        """Whether the files are full until a checkpoint allows to overwrite what they hold."""


def run_resumable(
    resumable: Resumable,
    directory: RunDirectory,
    *,
    checkpoint_seconds: float = 30.0,
    stop: Callable[[], bool] = lambda: False,
    until: float = 1.0,
) -> Iterator[tuple[float, MetricsRow | None]]:
    """Run from the last checkpoint, or from the start if there is none, to the end.

    A checkpoint is written every `checkpoint_seconds`, when `stop` returns true, when the files of
    a `KeepsFiles` need one, and at the end.

    Args:
        resumable: what to run, in its initial state.
        directory: where its metrics and checkpoints are.
        checkpoint_seconds: time between two checkpoints.
        stop: called after each piece; true leads to a checkpoint, then `Interrupted` is raised.
        until: progress after which to pause with a checkpoint; 1 runs to the end.

    Yields:
        After each piece, the progress and the row that was recorded, if there is one.
    """
    files = resumable if isinstance(resumable, KeepsFiles) else None
    if files is not None:
        files.keep_in(directory.path)
    state = directory.load()
    if state is not None:
        _load(resumable, state, directory)
    if _reached(resumable, until):  # it paused here before
        return
    saved_at = time.monotonic()
    for row in resumable.run():
        if row is not None:
            directory.append(row)
        yield resumable.progress, row
        stopping, paused = stop(), _reached(resumable, until)
        needed = stopping or paused or (files is not None and files.needs_saving)
        if needed or time.monotonic() - saved_at >= checkpoint_seconds:
            directory.save(resumable.state_dict())
            saved_at = time.monotonic()
        if stopping:
            raise Interrupted
        if paused:
            return
    directory.save(resumable.state_dict(), finished=True)


def _reached(resumable: Resumable, until: float) -> bool:
    """Whether it pauses here; at the end there is nothing to pause."""
    return until < 1 and resumable.progress >= until


def _load(resumable: Resumable, state: dict[str, Any], directory: RunDirectory) -> None:
    """Load a state, which may be of another version, or belong to files that are damaged."""
    try:
        resumable.load_state_dict(state)
    except Exception as error:
        raise RunError(
            f"cannot continue from the checkpoint in {directory.path} "
            f"({type(error).__name__}: {error}): {START_AGAIN}"
        ) from error
