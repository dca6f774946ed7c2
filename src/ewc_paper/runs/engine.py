"""Runs the parts of a run in worker processes of one thread each, which do not compete for cores.

Each part has a run directory of its own, so a run is resumed by running it again: parts that are
finished are skipped, the others continue from their checkpoints.
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
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.loop import Resumable, carry_on


@dataclass(frozen=True)
class Part:
    """One of the things that a run consists of, such as one network with one seed.

    Args:
        name: its directory's name, unique in the run.
        config: its options, stored in its directory.
        make: creates it from `config`, in its initial state; a function that can be pickled.
        disk_bytes: disk space that files of its own need while it runs.
        disk_advice: an option that reduces `disk_bytes`, for the error if the disk is too small.
        temporary_files: glob patterns of files of its own that are removed when it has finished.
    """

    name: str
    config: dict[str, Any]
    make: Callable[[dict[str, Any]], Resumable]
    disk_bytes: int = 0
    disk_advice: str = ""
    temporary_files: tuple[str, ...] = ()


class Report(NamedTuple):
    """The progress of one part, and the row of metrics that it has just recorded, if any."""

    part: str  # its name
    progress: float  # from 0 to 1
    row: MetricsRow | None


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

    If a part fails, or a report cannot be shown, all others write a checkpoint and stop.

    Args:
        run: directory of the whole run.
        parts: what to run; finished parts are skipped.
        workers: number of processes.
        checkpoint_seconds: time between two checkpoints of a part.
        show: called with every report, in this process.
    """
    context = multiprocessing.get_context("spawn")
    reports: Reports = context.Queue()
    stop = context.Event()
    setup = (reports, stop, checkpoint_seconds)
    with (
        _stop_on_signals(stop),
        ProcessPoolExecutor(workers, context, _start_worker, setup) as pool,
    ):
        with _signals_blocked():
            futures = [pool.submit(_run_part, run.part(part.name), part) for part in parts]
        for future in futures:
            future.add_done_callback(lambda ended: stop.set() if ended.exception() else None)
        _show_all(reports, show, futures, stop)
    _raise_first_error(futures)
    if stop.is_set():
        raise Interrupted


def _raise_first_error(futures: list[Future[None]]) -> None:
    """Raise the error of the first part that failed, if any."""
    try:
        for future in futures:
            future.result()
    except BrokenProcessPool:
        raise RunError(
            "a worker process died, perhaps for lack of memory or disk space: free some and "
            "continue with --resume"
        ) from None


def _show_all(
    reports: Reports, show: Callable[[Report], None], futures: list[Future[None]], stop: Event
) -> None:
    """Show the reports until all parts have ended; if that fails, ask the parts to stop."""
    try:
        _show_until_done(reports, show, futures)
    except BaseException as error:
        stop.set()
        # A worker cannot exit before its reports are taken.
        _show_until_done(reports, lambda report: None, futures)
        if not isinstance(error, OSError):
            raise
        raise RunError(
            f"cannot show the progress of the run ({error.strerror}); it was stopped after "
            "checkpoints: continue with --resume"
        ) from error


def _show_until_done(
    reports: Reports, show: Callable[[Report], None], futures: list[Future[None]]
) -> None:
    while not all(future.done() for future in futures):
        _show_waiting(reports, show, seconds=0.1)
    _show_waiting(reports, show, seconds=0.1)


def _show_waiting(reports: Reports, show: Callable[[Report], None], seconds: float) -> None:
    """Show the reports that arrive, until none has arrived for that many seconds."""
    while True:
        try:
            show(reports.get(timeout=seconds))
        except queue.Empty:
            return


@contextmanager
def _stop_on_signals(stop: Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM ask for a stop; a second one ends the process immediately."""

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {
        number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals while workers start, which inherit this: Ctrl-C would kill one at its imports.

    A signal that arrives meanwhile is handled here afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: tuple[Reports, Event, float]  # arguments of _start_worker, in each worker process


def _start_worker(*setup: Any) -> None:
    """Prepare a worker process; `setup` is what `_worker` holds."""
    global _worker
    _worker = setup
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them and sets the event
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End this worker if its parent is killed: somebody may resume the run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_part(directory: RunDirectory, part: Part) -> None:
    """Run one part in a worker process, unless it is finished or all are asked to stop."""
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
        directory.remove(part.temporary_files)
