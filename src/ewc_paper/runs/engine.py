"""What every engine runs, and how: parts of runs, each in a run directory of its own.

An engine runs jobs somewhere: `runs.local` in processes on this machine, `runs.ray_engine` on a
Ray cluster. What a worker does is `perform`, the same function everywhere. A run is resumed by
running it again: parts that are finished are skipped, the others go on from their checkpoints.
"""

import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

from ewc_paper.errors import Damaged, Interrupted, RunError
from ewc_paper.runs.checkpoint import complete_save, says_finished
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.loop import Resumable, carry_on

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
    """

    name: str
    config: dict[str, Any]
    make: Callable[[dict[str, Any]], Resumable]
    disk_bytes: int = 0
    disk_advice: str = ""
    temporary_files: tuple[str, ...] = ()


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


Tell = Callable[[Report | Ended], None]


class Engine(Protocol):
    """Runs jobs, on one machine or many."""

    def run(self, jobs: Sequence[Job], *, checkpoint_seconds: float, tell: Tell) -> None:
        """Run all jobs; one that fails does not end the others.

        If asked to stop by a signal, raises Interrupted after checkpoints. If `tell` raises, all
        jobs stop after checkpoints and its error is raised.

        Args:
            jobs: what to run; parts that are finished are skipped.
            checkpoint_seconds: time between two checkpoints of a part.
            tell: called in this process with every report and at the end of every job.
        """


def run_parts(
    run: RunDirectory,
    parts: Sequence[Part],
    *,
    engine: Engine,
    checkpoint_seconds: float,
    show: Callable[[Report], None],
) -> None:
    """Run every part of a run to its end; if one fails, all others stop after checkpoints.

    Args:
        run: directory of the whole run.
        parts: what to run.
        engine: where to run it.
        checkpoint_seconds: time between two checkpoints of a part.
        show: called with every report, in this process.
    """

    def tell(news: Report | Ended) -> None:
        if isinstance(news, Report):
            show(news)
        elif news.error is not None:
            raise news.error

    jobs = [Job(part.name, run.part(part.name).path, part) for part in parts]
    engine.run(jobs, checkpoint_seconds=checkpoint_seconds, tell=tell)


def perform(
    job: Job,
    *,
    report: Callable[[Report], None],
    stop: Callable[[], bool],
    checkpoint_seconds: float,
    patience_seconds: float = 10.0,
) -> None:
    """Do a job, in a worker; if it fails, its traceback is kept in its directory.

    Args:
        job: what to run.
        report: called after each piece.
        stop: true leads to a checkpoint, then `Interrupted` is raised.
        checkpoint_seconds: time between two checkpoints.
        patience_seconds: how long to wait for another process that writes to the directory.
    """
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
            _carry_on(job, directory, checkpoint_seconds, report, stop)
        except Interrupted:
            raise
        except Exception:
            with suppress(RunError):  # the disk may be full; the error itself is what matters
                directory.write_text(ERROR, traceback.format_exc())
            raise


def outcome(
    job: Job, *, report: Callable[[Report], None], stop: Callable[[], bool], **given: float
) -> Ended | None:
    """Do a job and return how it ended, for an engine's worker; None if it was interrupted.

    Args:
        job: what to run.
        report: as in `perform`.
        stop: as in `perform`.
        given: the times of `perform`.
    """
    if stop():
        return None
    try:
        perform(job, report=report, stop=stop, **given)
    except Interrupted:
        return None
    except Exception as error:
        return Ended(job.name, _as_run_error(job, error))
    return Ended(job.name, None)


def _carry_on(
    job: Job,
    directory: RunDirectory,
    checkpoint_seconds: float,
    report: Callable[[Report], None],
    stop: Callable[[], bool],
) -> None:
    if directory.finished():
        report(Report(job.name, 1.0, None))
    else:
        carry_on(
            job.part.make(job.part.config),
            directory,
            checkpoint_seconds=checkpoint_seconds,
            report=lambda progress, row: report(Report(job.name, progress, row)),
            stop=stop,
            until=job.until,
        )
    if says_finished(directory.path):
        directory.remove(job.part.temporary_files)


def start_again(directory: RunDirectory, config: dict[str, Any]) -> None:
    """Start or resume a directory whose options are known, also if its record of them is lost."""
    try:
        directory.start(config, resume=True)
    except Damaged:
        (directory.path / "config.json").unlink()
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


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM ask for a stop; a second one ends the process immediately."""

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop()
        signal.signal(number, signal.SIG_DFL)

    before = {
        number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def lost_display(error: BaseException) -> BaseException:
    """What to raise when `tell` failed: errors of the system with what to do about them."""
    if not isinstance(error, OSError):
        return error
    return RunError(
        f"cannot show the progress of the run ({error.strerror}); it was stopped after "
        "checkpoints: continue with --resume"
    )
