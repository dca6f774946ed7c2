"""How far the parts of a run are: written by the running process, read while it goes on or later.

The running process keeps `progress.json` in the run directory. That file, the checkpoints and the
tracebacks of what failed say which parts are done, running, failed and why, stopped early, or
waiting; `ewc status` and the tables of a sweep read them.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from ewc_paper.errors import Damaged, RunError
from ewc_paper.runs.checksums import sums_of
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import ERROR, Part, Report
from ewc_paper.runs.files import parse_record, read_bytes
from ewc_paper.runs.schema import (
    SchemaError,
    integer,
    mapping,
    number,
    optional,
    record,
    short_text,
)
from ewc_paper.terminal import printable

NAME = "progress.json"
EVERY_SECONDS = 2.0


class ProgressFile:
    """Keeps the progress of every part that has reported; used as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / NAME
        self._started = time.time()
        before = read_progress(directory)
        self._begun = before["begun"] or self._started
        self._seconds_before = before["all_seconds"]
        self._first: dict[str, float] = {}  # progress at the first report, to know the speed
        self._last: dict[str, float] = {}
        self._written = 0.0

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write()

    def keep(self, report: Report) -> None:
        """Keep a report; it is written every few seconds."""
        self._first.setdefault(report.part, report.progress)
        self._last[report.part] = report.progress
        if time.monotonic() - self._written >= EVERY_SECONDS:
            self._write()

    def _write(self) -> None:
        """Replace the file; it is not synced, as it says nothing that a resume needs."""
        self._written = time.monotonic()
        made = sum(self._last.values()) - sum(self._first.values())
        seconds = max(0.0, time.time() - self._started)
        content = {
            "process": os.getpid(),
            "begun": self._begun,
            "seconds": seconds,
            "all_seconds": self._seconds_before + seconds,
            "made": made,
            "parts": self._last,
        }
        new = self._file.with_name(f"{NAME}.new")
        with suppress(OSError):  # a full disk is noticed where it matters
            new.write_text(json.dumps(content))
            os.replace(new, self._file)


_CHECK = record(
    process=integer(),
    begun=optional(number(0)),
    seconds=number(0),
    all_seconds=optional(number(0)),
    made=number(0),
    parts=mapping(short_text, number(0, 1)),
)


def read_progress(directory: Path) -> dict[str, Any]:
    """Return what the file says about a run, or about nothing if it cannot be read.

    `begun` is when the run was first started (Unix time, 0 if that is not known), `all_seconds` the
    time that all its sessions took; `seconds` and the progress `made` are those of the last one.
    """
    times = {"begun": 0.0, "seconds": 0.0, "all_seconds": 0.0}
    nothing: dict[str, Any] = {"process": 0, "made": 0.0, "parts": {}, **times}
    try:
        content = parse_record(read_bytes(directory / NAME), NAME)
        _CHECK(content)
    except (OSError, RunError, SchemaError):
        return nothing
    return {**nothing, **{name: value for name, value in content.items() if value is not None}}


DONE, RUNNING, FAILED, DAMAGED = "done", "running", "failed", "damaged"
STOPPED, WAITING = "stopped early", "waiting"
STATES = (DONE, RUNNING, FAILED, DAMAGED, STOPPED, WAITING)
WRONG = (FAILED, DAMAGED)  # that somebody has to look at


class PartState(NamedTuple):
    """The state of one part, its progress as far as it is known, and what is wrong with it."""

    name: str
    state: str
    progress: float
    why: str = ""


Check = Callable[[RunDirectory], None]  # raises RunError if a file of a part is damaged


def part_state(
    name: str, part: RunDirectory, progress: float | None, live: bool, check: Check
) -> PartState:
    """How far a part is.

    Args:
        name: what it is called.
        part: its run directory.
        progress: what the running process last said about it, if it did.
        live: whether that process still runs.
        check: of its files.
    """
    damage = _damage(part, live, check)
    if damage:
        return PartState(name, DAMAGED, 0.0, damage)
    if part.says_finished():
        return PartState(name, DONE, 1.0)
    known = progress if progress is not None and progress < 1 else 0.0  # 1: its end is lost
    if os.path.lexists(part.path / ERROR):
        return PartState(name, FAILED, known, why_failed(part.path))
    running = live and progress is not None
    return PartState(name, RUNNING if running else WAITING, known)


def _damage(part: RunDirectory, live: bool, check: Check) -> str:
    """What is wrong with the files of a part, in a line; empty if nothing is.

    A running process replaces files while they are read, so its parts are looked at twice.
    """
    for last in (False, True) if live else (True,):
        try:
            if part.begun or sums_of(part.path):
                check(part)
        except (RunError, OSError) as error:
            if last:
                return printable(str(error))
            time.sleep(0.2)
        else:
            break
    return ""


def why_failed(directory: Path) -> str:
    """The last line of the traceback that a failed part left."""
    try:
        lines = read_bytes(directory / ERROR).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    except Damaged:  # not a file
        lines = ["its traceback cannot be read"]
    return printable(lines[-1]) if lines else ""


def parts_of(
    run: RunDirectory,
    parts: Sequence[Part],
    told: Mapping[str, float],
    live: bool,
    check: Check,
    prefix: str = "",
) -> list[PartState]:
    """How far the parts of a run are.

    Args:
        run: its directory.
        parts: that are planned.
        told: by name, what the running process said.
        live: whether that process still runs.
        check: of the files of a part.
        prefix: before the name of each part.
    """
    return [
        part_state(
            prefix + part.name, run.part(part.name), told.get(prefix + part.name), live, check
        )
        for part in parts
    ]


def seconds_left(directory: Path, states: Iterable[PartState]) -> float | None:
    """Time left at the speed of the running process; None if it is not known."""
    told = read_progress(directory)
    left = sum(1 - state.progress for state in states if state.state in (RUNNING, WAITING))
    if not RunDirectory(directory).is_being_written() or told["made"] <= 0:
        return None
    seconds: float = left * told["seconds"] / told["made"]
    return seconds


def counts(states: Iterable[PartState]) -> dict[str, int]:
    """How many parts are in each state that occurs."""
    counted = Counter(state.state for state in states)
    return {state: counted[state] for state in STATES if counted[state]}


def told_progress(directory: Path) -> dict[str, float]:
    """By name of a part: the progress that the running process has last written."""
    if not directory.is_dir():
        raise RunError(f"{directory} is no directory")
    parts: dict[str, float] = read_progress(directory)["parts"]
    return parts
