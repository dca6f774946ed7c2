"""What every engine runs, and how: parts of runs, each in a run directory of its own.

An engine runs jobs somewhere: `LocalEngine` in worker processes on this machine, the one of
`runs.ray_engine` on a Ray cluster. What a worker does is `run_job`, the same function everywhere. A
run is resumed by running it again: parts that are finished are skipped, the others go on from their
checkpoints.

There is one channel for what happens: a worker yields events, an engine yields those of all its
workers, and who runs jobs reads them there. Closing the generator stops the jobs.

Local workers have one thread each, so that they do not compete for cores. Every one has a pipe of
its own, so that one that dies is noticed and its job known: the job goes on from its checkpoint in
a new worker.
"""

import multiprocessing
import os
import shutil
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch

from ewc_paper.errors import Damaged, Interrupted, OtherOptions, RunError
from ewc_paper.runs.checkpoint import complete_save
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.loop import Resumable, run_resumable

ERROR = "error.txt"  # in the directory of a part that failed: its traceback
ATTEMPTS = 3  # a part is given up after its worker has died this many times


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
        flush_denormals: whether its worker takes denormal numbers as zero, because arithmetic on
            them is some twenty times slower.
    """

    name: str
    config: dict[str, Any]
    make: Callable[[dict[str, Any]], Resumable]
    disk_bytes: int = 0
    disk_advice: str = ""
    temporary_files: tuple[str, ...] = ()
    flush_denormals: bool = False


@dataclass(frozen=True)
class Job:
    """A part and where it is run.

    Args:
        name: what its reports are called; unique among the jobs of an engine.
        directory: the run directory of the part.
        part: what is run.
        until: progress after which it pauses; 1 runs it to its end.
        mend: whether a damaged directory is put aside and the part started again.
    """

    name: str
    directory: Path
    part: Part
    until: float = 1.0
    mend: bool = False


class Report(NamedTuple):
    """The progress of one part, and the row of metrics that it has just recorded, if any."""

    part: str  # the name of its job
    progress: float  # from 0 to 1
    row: MetricsRow | None


class Ended(NamedTuple):
    """A job has ended: it has come as far as it was asked to, or it has failed."""

    part: str  # the name of the job
    error: RunError | None


Event = Report | Ended


class Engine(Protocol):
    """Runs jobs, on one machine or many."""

    def run(
        self, jobs: Sequence[Job], *, checkpoint_seconds: float
    ) -> Generator[Event, None, None]:
        """Run all jobs and yield what happens; one that fails does not end the others.

        If asked to stop by a signal, raises Interrupted after checkpoints. If the generator is
        closed before its end, all jobs stop after checkpoints.

        Args:
            jobs: what to run; parts that are finished are skipped.
            checkpoint_seconds: time between two checkpoints of a part.
        """


def run_parts(
    run: RunDirectory, parts: Sequence[Part], *, engine: Engine, checkpoint_seconds: float
) -> Generator[Report, None, None]:
    """Run every part of a run to its end; if one fails, all others stop after checkpoints.

    Args:
        run: directory of the whole run.
        parts: what to run.
        engine: where to run it.
        checkpoint_seconds: time between two checkpoints of a part.

    Yields:
        The reports of all parts.
    """
    jobs = [Job(part.name, run.part(part.name).path, part) for part in parts]
    with closing(engine.run(jobs, checkpoint_seconds=checkpoint_seconds)) as events:
        for event in events:
            if isinstance(event, Report):
                yield event
            elif event.error is not None:
                raise event.error


def run_job(
    job: Job,
    *,
    stop: Callable[[], bool],
    checkpoint_seconds: float,
    patience_seconds: float = 10.0,
) -> Iterator[Event]:
    """Do a job, in a worker.

    Args:
        job: what to run.
        stop: true interrupts the job after a checkpoint.
        checkpoint_seconds: time between two checkpoints.
        patience_seconds: how long to wait for another process that writes to the directory.

    Yields:
        A report after each piece, and how the job ended unless it was interrupted.
    """
    if stop():
        return
    try:
        yield from _run_in_directory(job, stop, checkpoint_seconds, patience_seconds)
    except Interrupted:
        return
    except Exception as error:
        yield Ended(job.name, _as_run_error(job, error))
    else:
        yield Ended(job.name, None)


def _run_in_directory(
    job: Job, stop: Callable[[], bool], checkpoint_seconds: float, patience_seconds: float
) -> Iterator[Report]:
    """Run a part in its directory; if it fails, its traceback is kept there."""
    directory = RunDirectory(job.directory)
    if job.mend:
        start_again(directory, job.part.config)
    else:
        directory.start(job.part.config, resume=True)
    with directory.locked(patience_seconds):
        directory.remove([ERROR])
        try:
            if job.mend:
                _put_damage_aside(directory)
            complete_save(directory.path)
            yield from _run_part(job, directory, stop, checkpoint_seconds)
        except Interrupted:
            raise
        except Exception:
            with suppress(RunError):  # the disk may be full; the error itself is what matters
                directory.write_text(ERROR, traceback.format_exc())
            raise


def _run_part(
    job: Job, directory: RunDirectory, stop: Callable[[], bool], checkpoint_seconds: float
) -> Iterator[Report]:
    if directory.finished():
        yield Report(job.name, 1.0, None)
    else:
        torch.set_flush_denormal(job.part.flush_denormals)
        pieces = run_resumable(
            job.part.make(job.part.config),
            directory,
            checkpoint_seconds=checkpoint_seconds,
            stop=stop,
            until=job.until,
        )
        for progress, row in pieces:
            yield Report(job.name, progress, row)
    if directory.says_finished():
        directory.remove(job.part.temporary_files)
        directory.seal()


def start_again(directory: RunDirectory, config: dict[str, Any]) -> None:
    """Start or resume a directory whose options are known, also if its record of them is lost."""
    try:
        directory.start(config, resume=True)
    except (Damaged, OtherOptions):
        aside = directory.path / "damaged"
        aside.mkdir(exist_ok=True)
        (directory.path / "config.json").replace(aside / "config.json")
        directory.start(config, resume=True)


def _put_damage_aside(directory: RunDirectory) -> None:
    """Move the files of a part that cannot go on into its folder `damaged`."""
    try:
        directory.finished()
        directory.rows()
    except Damaged:
        aside = directory.path / "damaged"
        aside.mkdir(exist_ok=True)
        for file in directory.path.iterdir():
            if file.is_file() and file.name not in ("config.json", "lock"):
                file.replace(aside / file.name)


def _as_run_error(job: Job, error: Exception) -> RunError:
    if isinstance(error, RunError):
        return RunError(str(error))  # a subclass, or its cause, may not travel between processes
    said = str(error).partition("\n")[0]
    return RunError(
        f"{job.name} failed ({type(error).__name__}: {said}); its traceback is in "
        f"{job.directory / ERROR}"
    )


def worker_died(job: Job) -> RunError:
    """The error of a job whose worker has died `ATTEMPTS` times, kept in its directory too."""
    error = RunError(
        f"{job.name}: its worker process died {ATTEMPTS} times, perhaps for lack of memory or disk "
        "space: free some and continue with --resume"
    )
    job.directory.mkdir(parents=True, exist_ok=True)
    RunDirectory(job.directory).write_text(ERROR, f"{error}\n")
    return error


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: the connection was lost
STOPPING = "stopping after a checkpoint; again to end at once"


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a lost connection ask for a stop; a second one ends the process."""

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop()
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        with suppress(OSError):  # the terminal may be gone
            os.write(2, f"\newc: {STOPPING}\n".encode())

    before = {
        number: signal.signal(number, ask_to_stop)
        for number in SIGNALS
        if signal.getsignal(number) != signal.SIG_IGN or number != signal.SIGHUP  # nohup
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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

    def run(
        self, jobs: Sequence[Job], *, checkpoint_seconds: float
    ) -> Generator[Event, None, None]:
        """See `Engine.run`."""
        if not jobs:
            return
        context = multiprocessing.get_context("spawn")
        stop = StopFlag(*context.Pipe(duplex=False))
        with stop_on_signals(stop.set):
            pool = _Pool(context, stop, checkpoint_seconds, jobs, min(self.workers, len(jobs)))
            try:
                yield from pool.events()
            except BaseException:  # also if nobody listens any more
                stop.set()
                for _ in pool.events():  # a worker cannot go on before its reports are taken
                    pass
                raise
            finally:
                pool.close()
                interrupted = stop.is_set()
                stop.close()
        if interrupted:
            raise Interrupted


class StopFlag:
    """Says to all workers that they are asked to stop.

    It is a pipe that holds a byte once it is set, and that nobody reads. A semaphore, as in
    `multiprocessing.Event`, would be left behind by a process that is killed, with a warning.
    """

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self._reader = reader
        self._writer: Connection | None = writer

    def __getstate__(self) -> dict[str, Any]:
        return {"_reader": self._reader, "_writer": None}  # workers do not set it

    def set(self) -> None:
        """Ask to stop."""
        assert self._writer is not None
        if not self.is_set():
            self._writer.send_bytes(b"stop")

    def is_set(self) -> bool:
        """Whether workers are asked to stop; true also when the process that asks has died."""
        return self._reader.poll(0)

    def close(self) -> None:
        """Close the pipe, once all workers have ended."""
        self._reader.close()
        if self._writer is not None:
            self._writer.close()


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
        stop: StopFlag,
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

    def events(self) -> Iterator[Event]:
        """Yield what the workers send until no job is left; none is started after a stop."""
        self._hand_out()
        while busy := {worker.pipe: worker for worker in self._workers if worker.job}:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                event = self._receive(busy[pipe])
                if event is not None:
                    yield event
            self._hand_out()

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.job is None and self._waiting and not self._stop.is_set():
                worker.job = self._waiting.popleft()
                worker.pipe.send(worker.job)

    def _receive(self, worker: _Worker) -> Event | None:
        """Take an event of a worker; None if it was interrupted, or its job is started again."""
        job = worker.job
        assert job is not None
        try:
            event: Event | None = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._replace(worker, job)
        if not isinstance(event, Report):
            worker.job = None
        return event

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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, stop: StopFlag, checkpoint_seconds: float) -> None:
    """What a worker process does: one job after another, until it gets None."""
    torch.set_num_threads(1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent handles them and sets the event
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    while job := _receive(pipe):
        event: Event | None = None
        for event in run_job(job, stop=stop.is_set, checkpoint_seconds=checkpoint_seconds):
            _send(pipe, event)
        if not isinstance(event, Ended):
            _send(pipe, None)  # it was interrupted


def _receive(pipe: Connection) -> Job | None:
    """Wait for a job; end this worker if nobody is there to give one."""
    try:
        job: Job | None = pipe.recv()
    except (OSError, EOFError):
        os._exit(1)
    return job


def _send(pipe: Connection, event: Event | None) -> None:
    """Send an event; end this worker if nobody is there to take it."""
    try:
        pipe.send(event)
    except OSError:
        os._exit(1)


def _exit_with_parent() -> None:
    """End this worker if its parent is killed: somebody may resume the run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def check_disk_space(path: Path, parts: Sequence[Part], workers: int) -> None:
    """Raise RunError if the files of the parts need more disk space than there is.

    Args:
        path: run directory, which need not exist yet.
        parts: all parts of the run.
        workers: number of parts that run at the same time.
    """
    needed = largest_total_bytes(parts, workers)
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free + _used_bytes(path)
    if needed > free:
        choices = ["free disk space", "choose another --out", "fewer --workers"]
        choices += sorted({part.disk_advice for part in parts if part.disk_advice})
        raise RunError(
            f"{path} will need {needed / 1e9:.1f} GB of disk space for the files of "
            f"{min(workers, len(parts))} parts at a time, but only {free / 1e9:.1f} GB are "
            f"free: {', '.join(choices[:-1])} or {choices[-1]}"
        )


def largest_total_bytes(parts: Sequence[Part], workers: int) -> int:
    """Return the most disk space that `workers` parts can need at the same time."""
    return sum(sorted((part.disk_bytes for part in parts), reverse=True)[:workers])


def _used_bytes(path: Path) -> int:
    """Disk space that the files of a resumed run take already."""
    return sum(512 * file.stat().st_blocks for file in path.rglob("*") if file.is_file())
