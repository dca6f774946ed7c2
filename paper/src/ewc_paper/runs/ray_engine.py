"""The engine for many machines: every job is a task of Ray, which places it and starts it again.

A node that dies loses the work since the last checkpoints of its parts if the run directory is on
storage that all nodes share; that is found out with a token in a file. Without shared storage, the
files of a part come back through Ray's object store when it ends, or stops. Usage statistics and
dashboard stay off, and a cluster on this machine listens to loopback alone.
"""

import logging
import os
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ewc_paper.errors import Interrupted, RunError
from ewc_paper.runs.checkpoint import CURRENT, NEW, PREVIOUS
from ewc_paper.runs.checksums import SUMS
from ewc_paper.runs.engine import (
    ATTEMPTS,
    Ended,
    Event,
    Job,
    Report,
    run_job,
    stop_on_signals,
    worker_died,
)
from ewc_paper.runs.files import replace_file

Files = dict[str, bytes]  # of a part, by name

REPORTS_PER_SECOND = 200  # of all parts together, which one process must read
LOCK_SECONDS = 120.0  # until shared storage gives up the lock of a node that died
# Workers of Ray have a niceness of 15, so that any other process on a node would starve them.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": nodes are at 127.0.0.1

QUIET: dict[str, Any] = {
    "include_dashboard": False,
    "log_to_driver": False,
    "logging_level": logging.ERROR,
}


class Outcome(NamedTuple):
    """How a job ended, its last reports, and its files if they are not on shared storage."""

    ended: Ended | None  # None: it was interrupted
    reports: list[Report]
    files: Files | None = None


class Mailbox:
    """An actor that takes the reports of all parts and tells them when to stop."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._stopping = False

    def put(self, reports: list[Report]) -> bool:
        """Take reports of a part; true asks it to stop."""
        self._reports += reports
        return self._stopping

    def files(self, job: Job) -> Files:
        """Give the files that a part has so far to a node that cannot see them."""
        return read_files(job.directory, job)

    def take(self, stopping: bool) -> list[Report]:
        """Give the reports so far to the driver, which says whether all parts shall stop."""
        self._stopping = stopping
        reports, self._reports = self._reports, []
        return reports


class Correspondent:
    """What a task tells the mailbox: all rows, but the progress only every few seconds.

    It never waits for an answer: while a task waits, Ray gives its CPU to another one.
    """

    def __init__(
        self, put: Callable[[list[Report]], Callable[[], bool | None]], every_seconds: float
    ) -> None:
        """Create it for one task.

        Args:
            put: sends reports; returns a function that says whether to stop, None until it knows.
            every_seconds: time between two letters.
        """
        self._put = put
        self._every_seconds = every_seconds
        self._answer: Callable[[], bool | None] = lambda: False
        self._sent_at = time.monotonic()
        self.waiting: list[Report] = []

    def report(self, report: Report) -> None:
        """Send a report, or keep it until it is time."""
        if self.waiting and self.waiting[-1].row is None:
            self.waiting.pop()
        self.waiting.append(report)
        if time.monotonic() - self._sent_at >= self._every_seconds:
            self._answer = self._put(self.waiting)
            self.waiting, self._sent_at = [], time.monotonic()

    def stopping(self) -> bool:
        """Whether the last answer that has come asks to stop."""
        return bool(self._answer())


def run_job_remotely(
    job: Job, mailbox: Any, token: Path, every: float, checkpoint_seconds: float
) -> Outcome:
    """Do a job in a task of Ray, in the run directory itself if this node can see it.

    Args:
        job: what to run.
        mailbox: handle of the actor.
        token: a file in the run directory; seen here, the storage is shared.
        every: seconds between two reports.
        checkpoint_seconds: time between two checkpoints.
    """
    import ray

    torch.set_num_threads(1)

    def put(reports: list[Report]) -> Callable[[], bool | None]:
        sent = mailbox.put.remote(reports)
        return lambda: ray.get(sent) if ray.wait([sent], timeout=0)[0] else None

    correspondent = Correspondent(put, every)

    def run(here: Job) -> Ended | None:
        events = run_job(
            here,
            stop=correspondent.stopping,
            checkpoint_seconds=checkpoint_seconds,
            patience_seconds=LOCK_SECONDS,
        )
        for event in events:
            if isinstance(event, Ended):
                return event
            correspondent.report(event)
        return None

    if stop_file(token).exists():
        return Outcome(None, [])
    if token.exists():
        return Outcome(run(job), correspondent.waiting)
    with tempfile.TemporaryDirectory(prefix="ewc-") as place:
        directory = Path(place) / job.directory.name
        write_files(directory, ray.get(mailbox.files.remote(job)))
        ended = run(replace(job, directory=directory))
        return Outcome(ended, correspondent.waiting, read_files(directory, job))


def stop_file(token: Path) -> Path:
    """A file beside the token that keeps tasks from starting, once all are asked to stop."""
    return token.with_suffix(".stop")


class RayEngine:
    """Runs jobs on a Ray cluster."""

    def __init__(
        self, address: str | None = None, *, gpus: float | None = None, shared: bool = True
    ) -> None:
        """Create an engine; it connects when it runs jobs.

        Args:
            address: of the cluster; without it, a cluster on this machine is started.
            gpus: GPUs per job; without it, the cluster's are shared evenly among its CPUs.
            shared: False never takes the run directory for shared storage.
        """
        self.address = address
        self._gpus = gpus
        self._shared = shared

    def run(
        self, jobs: Sequence[Job], *, checkpoint_seconds: float
    ) -> Generator[Event, None, None]:
        """See `Engine.run`."""
        if not jobs:
            return
        ray = connect(self.address)
        stop = threading.Event()
        token = _common_directory(jobs) / f".token-{uuid.uuid4().hex}"
        token.parent.mkdir(parents=True, exist_ok=True)
        for left in token.parent.glob(".token-*"):  # by a driver that was killed
            left.unlink(missing_ok=True)
        if self._shared:
            token.touch()
        try:
            with stop_on_signals(stop.set):
                tasks = _Tasks(ray, jobs, token, checkpoint_seconds, self._gpus)
                try:
                    while tasks.left:
                        yield from tasks.events(stop.is_set())
                except BaseException:  # also if nobody listens any more
                    stop.set()
                    while tasks.left:
                        tasks.events(stopping=True)
                    raise
        finally:
            for file in (token, stop_file(token)):
                file.unlink(missing_ok=True)
        if stop.is_set():
            raise Interrupted


def connect(address: str | None) -> Any:
    """Connect to a cluster, or start one here, and return the module `ray`."""
    os.environ |= ENVIRONMENT
    if address is None:
        os.environ[LOOPBACK] = "0"
    try:
        with _own_lines_silenced():
            import ray
    except ImportError:
        raise RunError("--engine ray needs Ray: pip install 'ewc-paper[cluster]'") from None
    if not ray.is_initialized():
        tried = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
        if tried:
            try_address(tried)
        try:
            with _own_lines_silenced():
                ray.init(address or "local", **QUIET)
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = str(error).partition("\n")[0]
            raise RunError(f"cannot connect to Ray at --address {address} ({said})") from error
    return ray


PATIENCE_SECONDS = 5.0  # for an answer from an address; Ray itself would try for minutes
# What begins every connection of gRPC, which Ray speaks: the preface of HTTP/2 and empty settings.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_FRAME = 4


def try_address(address: str) -> None:
    """Raise RunError unless something that could be a Ray cluster answers at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE_SECONDS) as connected:
            connected.settimeout(PATIENCE_SECONDS)
            connected.sendall(HELLO)
            answer = connected.recv(9)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or f"no answer within {PATIENCE_SECONDS:g} seconds"
        raise RunError(
            f"no Ray cluster answers at --address {address} ({said}): start one there with "
            "`ray start --head`, or leave out --address for one on this machine"
        ) from error
    if len(answer) < 4 or answer[3] != SETTINGS_FRAME:
        raise RunError(f"what answers at --address {address} is no Ray cluster")


@contextmanager
def _own_lines_silenced() -> Iterator[None]:
    """Send what Ray prints by itself, also from C++, to nowhere; its errors are exceptions too."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _common_directory(jobs: Sequence[Job]) -> Path:
    return Path(os.path.commonpath([job.directory.absolute().parent for job in jobs]))


class _Tasks:
    """The tasks of all jobs that have not ended."""

    def __init__(
        self,
        ray: Any,
        jobs: Sequence[Job],
        token: Path,
        checkpoint_seconds: float,
        gpus: float | None,
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._token = token
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        total = ray.cluster_resources()
        cpus = max(1.0, total.get("CPU", 1.0))
        gpus = min(1.0, total.get("GPU", 0.0) / cpus) if gpus is None else gpus
        task = ray.remote(run_job_remotely).options(
            num_cpus=1, num_gpus=gpus, max_retries=ATTEMPTS - 1, scheduling_strategy="SPREAD"
        )
        every = max(1.0, min(len(jobs), cpus) / REPORTS_PER_SECOND)
        self.left = {
            task.remote(job, self._mailbox, token, every, checkpoint_seconds): job
            for job in (replace(job, directory=job.directory.absolute()) for job in jobs)
        }

    def events(self, stopping: bool) -> list[Event]:
        """Return what was reported, and which jobs have ended; waits a moment for them."""
        done, _ = self._ray.wait(list(self.left), num_returns=len(self.left), timeout=0.2)
        reported: list[Event] = [*self._ray.get(self._mailbox.take.remote(stopping))]
        if stopping and self._token.exists():
            stop_file(self._token).touch()
        return reported + [event for task in done for event in self._end(task)]

    def _end(self, task: Any) -> list[Event]:
        """Take the outcome of a task: its last reports, and that it ended if it did."""
        job = self.left.pop(task)
        try:
            result: Outcome = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            said = str(error).strip().splitlines()[-1]
            return [Ended(job.name, RunError(f"{job.name}: {said}"))]
        except self._ray.exceptions.RayError:
            return [Ended(job.name, worker_died(job))]
        if result.files is not None:
            write_files(job.directory, result.files)
        return [*result.reports, *filter(None, [result.ended])]


def read_files(directory: Path, job: Job) -> Files:
    """Return the files of a part that outlive it."""
    left_out = {"lock", NEW, PREVIOUS}
    if directory.is_dir():
        left_out |= {
            file.name for pattern in job.part.temporary_files for file in directory.glob(pattern)
        }
    files = directory.rglob("*") if directory.is_dir() else ()
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in files
        if file.is_file() and file.name not in left_out
    }


def write_files(directory: Path, files: Files) -> None:
    """Write the files of a part; the checkpoint and the checksums last, as they refer to others."""
    order = {CURRENT: 1, SUMS: 2}
    for name in sorted(files, key=lambda name: (order.get(name, 0), name)):
        replace_file(directory / name, files[name])
