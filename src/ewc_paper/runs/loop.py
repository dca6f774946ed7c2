"""Carrying a learner to its end: rows go to the metrics, states to checkpoints."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ewc_paper.errors import Interrupted, RunError
from ewc_paper.runs.directory import ANEW, Row, RunDirectory


class Learner(Protocol):
    """Learns in steps and can be stopped after each: `run` goes on from `state_dict`."""

    @property
    def progress(self) -> float:
        """From 0 to 1."""

    def run(self) -> Iterator[Row | None]:
        """Go on to the end, with a row where there is something to record."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, nested."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


@runtime_checkable
class KeepsFiles(Protocol):
    """What a learner adds if it has more to keep than fits into every checkpoint.

    Such things, a replay memory for one, lie in files of the learner's own, to which a checkpoint
    only refers.
    """

    def keep_in(self, directory: Path) -> None:
        """Keep the files in this directory; called once, before any state is loaded."""

    @property
    def needs_saving(self) -> bool:
        """Whether the files can hold no more before a checkpoint lets go of what they hold."""


def carry_on(
    learner: Learner,
    directory: RunDirectory,
    *,
    checkpoint_seconds: float = 30.0,
    report: Callable[[float, Row | None], None] = lambda progress, row: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run the learner from its last checkpoint, or from the start, to the end.

    Checkpoints are written at least `checkpoint_seconds` apart, when `stop` asks to stop, when the
    learner's own files need one, and at the end.
    """
    files = learner if isinstance(learner, KeepsFiles) else None
    if files is not None:
        files.keep_in(directory.path)
    state = directory.load()
    if state is not None:
        _load(learner, state, directory)
    saved_at = time.monotonic()
    for row in learner.run():
        if row is not None:
            directory.append(row)
        report(learner.progress, row)
        stopping = stop()
        needed = stopping or (files is not None and files.needs_saving)
        if needed or time.monotonic() - saved_at >= checkpoint_seconds:
            directory.save(learner.state_dict())
            saved_at = time.monotonic()
        if stopping:
            raise Interrupted
    directory.save(learner.state_dict(), finished=True)


def _load(learner: Learner, state: dict[str, Any], directory: RunDirectory) -> None:
    """Go on from a state, which may be of another version or, with its files, from anywhere."""
    try:
        learner.load_state_dict(state)
    except Exception as error:
        raise RunError(
            f"cannot go on from the checkpoint in {directory.path} "
            f"({type(error).__name__}: {error}): {ANEW}"
        ) from error
