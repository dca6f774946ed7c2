"""Carrying a learner to its end: rows go to the metrics, states to checkpoints."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .directory import Row, RunDirectory
from .errors import Interrupted


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


def carry_on(
    learner: Learner,
    directory: RunDirectory,
    *,
    checkpoint_seconds: float = 30.0,
    report: Callable[[float, Row | None], None] = lambda progress, row: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run the learner from its last checkpoint, or from the start, to the end.

    Checkpoints are written at least `checkpoint_seconds` apart, when `stop` asks to stop, and at
    the end.
    """
    state = directory.load()
    if state is not None:
        learner.load_state_dict(state)
    saved_at = time.monotonic()
    for row in learner.run():
        if row is not None:
            directory.append(row)
        report(learner.progress, row)
        stopping = stop()
        if stopping or time.monotonic() - saved_at >= checkpoint_seconds:
            directory.save(learner.state_dict())
            saved_at = time.monotonic()
        if stopping:
            raise Interrupted
    directory.save(learner.state_dict(), finished=True)
