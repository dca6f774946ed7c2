"""Running many learners: a few processes of one thread each, which do not fight for cores.

Each learner is a part of the run and has a directory of its own, so a run is resumed by running it
again: parts that are finished are passed over, the others go on from their checkpoints.
"""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import torch

from ewc_paper.errors import Interrupted, RunError
from ewc_paper.runs.directory import Row, RunDirectory
from ewc_paper.runs.loop import Learner, carry_on


@dataclass(frozen=True)
class Part:
    """One learner of a run: its name, its options, and the function that makes it of them."""

    name: str
    config: dict[str, Any]
    make: Callable[[dict[str, Any]], Learner]
    disk_bytes: int = 0  # that files of the learner's own will take while it runs
    scratch: tuple[str, ...] = ()  # patterns of its files that nobody needs once it has ended


class Report(NamedTuple):
    """What a part has to tell: how far it is, and what it measured."""

    part: str
    progress: float
    row: Row | None


Reports: TypeAlias = "Queue[Report]"


def run_parts(
    run: RunDirectory,
    parts: Iterable[Part],
    *,
    workers: int,
    checkpoint_seconds: float,
    show: Callable[[Report], None],
) -> None:
    """Run every part to its end; if asked to stop, raise Interrupted after the checkpoints.

    If a part fails, or the reports cannot be shown, the others checkpoint and end.
    """
    context = multiprocessing.get_context("spawn")
    reports: Reports = context.Queue()
    stop = context.Event()
    setup = (reports, stop, checkpoint_seconds)
    with _signals_set(stop), ProcessPoolExecutor(workers, context, _start_worker, setup) as pool:
        with _signals_blocked():
            futures = [pool.submit(_run_part, run.part(part.name), part) for part in parts]
        for future in futures:
            future.add_done_callback(lambda ended: stop.set() if ended.exception() else None)
        _show_all(reports, show, futures, stop)
    try:
        for future in futures:
            future.result()
    except BrokenProcessPool:
        raise RunError(
            "a worker process died (out of memory or disk?): make room and go on with --resume"
        ) from None
    if stop.is_set():
        raise Interrupted


def _show_all(
    reports: Reports, show: Callable[[Report], None], futures: list[Future[None]], stop: Event
) -> None:
    """Show the reports until all parts have ended; if that fails, ask the parts to end."""
    try:
        _show_until_done(reports, show, futures)
    except BaseException as error:
        stop.set()
        # A worker cannot end before its reports are taken.
        _show_until_done(reports, lambda report: None, futures)
        if not isinstance(error, OSError):
            raise
        raise RunError(
            f"cannot show the progress of the run ({error.strerror}); it was stopped after "
            "checkpoints: go on with --resume"
        ) from error


def _show_until_done(
    reports: Reports, show: Callable[[Report], None], futures: list[Future[None]]
) -> None:
    while not all(future.done() for future in futures):
        _show_waiting(reports, show, seconds=0.1)
    _show_waiting(reports, show, seconds=0.1)


def _show_waiting(reports: Reports, show: Callable[[Report], None], seconds: float) -> None:
    """Show the reports that come in until none comes for that long."""
    while True:
        try:
            show(reports.get(timeout=seconds))
        except queue.Empty:
            return


@contextmanager
def _signals_set(stop: Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask for a stop; a second one ends the process on the spot."""

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """For the start of workers, which inherit it: Ctrl-C would kill one that still imports torch.

    A signal that comes meanwhile is handled here afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: tuple[Reports, Event, float]  # what _start_worker was given, in each worker process


def _start_worker(*setup: Any) -> None:
    global _worker
    _worker = setup
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent is asked, and sets the event
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed must not go on writing: somebody may resume the run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_part(directory: RunDirectory, part: Part) -> None:
    reports, stop, checkpoint_seconds = _worker
    if stop.is_set():
        return
    directory.start(part.config, resume=True)
    with directory.locked():
        if directory.finished():
            reports.put(Report(part.name, 1.0, None))
        else:
            try:
                carry_on(
                    part.make(part.config),
                    directory,
                    checkpoint_seconds=checkpoint_seconds,
                    report=lambda progress, row: reports.put(Report(part.name, progress, row)),
                    stop=stop.is_set,
                )
            except Interrupted:
                return
        directory.remove(part.scratch)
