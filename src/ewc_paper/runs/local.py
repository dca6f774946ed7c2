"""The engine for one machine: worker processes of one thread each, which do not compete for cores.

Every worker has a pipe of its own, so that one that dies is noticed and its job known: the job goes
on from its checkpoint in a new worker.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from ewc_paper.errors import Interrupted
from ewc_paper.runs.engine import (
    ATTEMPTS,
    Ended,
    Job,
    Report,
    Tell,
    lost_display,
    outcome,
    stop_on_signals,
    worker_died,
)

WORKER_BYTES = 1.0e9  # memory of a worker: torch, a data set and a network of the laptop presets


def default_workers() -> int:
    """As many workers as cores and memory allow, and at least one."""
    return max(1, min(len(os.sched_getaffinity(0)), int(_free_memory() // WORKER_BYTES)))


def _free_memory() -> float:
    """Memory in bytes that new processes can have; without an answer, as much as one could wish."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(float(line.split()[1]) for line in lines if "MemAvailable" in line) * 1024
    except (OSError, StopIteration):
        return float("inf")


class LocalEngine:
    """Runs jobs in processes on this machine."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or default_workers()

    def run(self, jobs: Sequence[Job], *, checkpoint_seconds: float, tell: Tell) -> None:
        """See `Engine.run`."""
        if not jobs:
            return
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        with stop_on_signals(stop.set):
            pool = _Pool(context, stop, checkpoint_seconds, jobs, min(self.workers, len(jobs)))
            try:
                _tell_all(pool, tell, stop)
            finally:
                pool.close()
        if stop.is_set():
            raise Interrupted


def _tell_all(pool: "_Pool", tell: Tell, stop: Event) -> None:
    """Tell all news until all jobs have ended; if that fails, ask the jobs to stop."""
    try:
        for news in pool.news():
            tell(news)
    except BaseException as error:
        stop.set()
        for _ in pool.news():  # a worker cannot go on before its reports are taken
            pass
        raise lost_display(error) from error


@dataclass
class _Worker:
    """A worker process, the parent's end of its pipe, and the job that it has, if any."""

    process: BaseProcess
    pipe: Connection
    job: Job | None = None


class _Pool:
    """The workers, and the jobs that wait for one."""

    def __init__(
        self,
        context: SpawnContext,
        stop: Event,
        checkpoint_seconds: float,
        jobs: Sequence[Job],
        workers: int,
    ) -> None:
        self._context = context
        self._stop = stop
        self._setup = (stop, checkpoint_seconds)
        self._waiting = deque(jobs)
        self._died: Counter[str] = Counter()
        self._workers = [self._start() for _ in range(workers)]

    def _start(self) -> _Worker:
        pipe, theirs = self._context.Pipe()
        with _signals_blocked():
            process = self._context.Process(target=_work, args=(theirs, *self._setup), daemon=True)
            process.start()
        theirs.close()  # so that the pipe ends with the worker
        return _Worker(process, pipe)

    def news(self) -> Iterator[Report | Ended]:
        """Yield what the workers report until no job is left; none is started after a stop."""
        self._hand_out()
        while busy := {worker.pipe: worker for worker in self._workers if worker.job}:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                news = self._receive(busy[pipe])
                if news is not None:
                    yield news
            self._hand_out()

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.job is None and self._waiting and not self._stop.is_set():
                worker.job = self._waiting.popleft()
                worker.pipe.send(worker.job)

    def _receive(self, worker: _Worker) -> Report | Ended | None:
        """Take a message of a worker; None if there is nothing to tell."""
        job = worker.job
        assert job is not None
        try:
            message: Report | Ended | None = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._replace(worker, job)
        if not isinstance(message, Report):
            worker.job = None
        return message

    def _replace(self, worker: _Worker, job: Job) -> Ended | None:
        """Start a new worker for one that died, and its job again unless it died too often."""
        worker.process.join()
        worker.pipe.close()
        self._workers[self._workers.index(worker)] = self._start()
        self._died[job.name] += 1
        if self._died[job.name] >= ATTEMPTS:
            return Ended(job.name, worker_died(job))
        self._waiting.appendleft(job)
        return None

    def close(self) -> None:
        """End the workers, which are all idle unless an error is on its way up."""
        for worker in self._workers:
            if worker.job is not None:
                worker.process.kill()
            else:
                with suppress(OSError):  # it has died
                    worker.pipe.send(None)
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals while a worker starts, which inherits this: Ctrl-C would kill it at imports.

    A signal that arrives meanwhile is handled here afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, stop: Event, checkpoint_seconds: float) -> None:
    """What a worker process does: one job after another, until it gets None."""
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them and sets the event
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    while job := pipe.recv():
        ended = outcome(
            job,
            report=lambda report: _send(pipe, report),
            stop=stop.is_set,
            checkpoint_seconds=checkpoint_seconds,
        )
        pipe.send(ended)


def _send(pipe: Connection, report: Report) -> None:
    """Send a report; end this worker if nobody is there to take it."""
    try:
        pipe.send(report)
    except OSError:
        os._exit(1)


def _exit_with_parent() -> None:
    """End this worker if its parent is killed: somebody may resume the run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
