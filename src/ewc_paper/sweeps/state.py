"""How far each run is: done, running, failed and why, stopped early, or waiting."""

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ewc_paper.errors import RunError
from ewc_paper.runs.checkpoint import says_finished
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import ERROR, Part
from ewc_paper.runs.progress_file import read_progress
from ewc_paper.terminal import printable

DONE, RUNNING, FAILED, STOPPED, WAITING = "done", "running", "failed", "stopped early", "waiting"
STATES = (DONE, RUNNING, FAILED, STOPPED, WAITING)


class PartState(NamedTuple):
    """The state of one part, its progress as far as it is known, and why it failed."""

    name: str
    state: str
    progress: float
    why: str = ""


def part_state(name: str, directory: Path, progress: float | None, live: bool) -> PartState:
    """How far a part is.

    Args:
        name: what it is called.
        directory: its run directory.
        progress: what the running process last said about it, if it did.
        live: whether that process still runs.
    """
    if says_finished(directory):
        return PartState(name, DONE, 1.0)
    if (directory / ERROR).is_file():
        return PartState(name, FAILED, progress or 0.0, why_failed(directory))
    running = live and progress is not None
    return PartState(name, RUNNING if running else WAITING, progress or 0.0)


def why_failed(directory: Path) -> str:
    """The last line of the traceback that a failed part left."""
    try:
        lines = (directory / ERROR).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return printable(lines[-1]) if lines else ""


def parts_of(
    run: RunDirectory,
    parts: Sequence[Part],
    told: Mapping[str, float],
    live: bool,
    prefix: str = "",
) -> list[PartState]:
    """How far the parts of a run are; `told` is by name what the running process said."""
    return [
        part_state(prefix + part.name, run.part(part.name).path, told.get(prefix + part.name), live)
        for part in parts
    ]


def is_live(directory: Path) -> bool:
    """Whether a process is running here: it holds the lock of the directory."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    with open(descriptor) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def seconds_left(directory: Path, states: Iterable[PartState]) -> float | None:
    """Time left at the speed of the running process; None if it is not known."""
    told = read_progress(directory)
    left = sum(1 - state.progress for state in states if state.state in (RUNNING, WAITING))
    if not is_live(directory) or told["made"] <= 0:
        return None
    seconds: float = left * told["seconds"] / told["made"]
    return seconds


def counts(states: Iterable[PartState]) -> dict[str, int]:
    """How many parts are in each state that occurs."""
    found = Counter(state.state for state in states)
    return {state: found[state] for state in STATES if found[state]}


def told_progress(directory: Path) -> dict[str, float]:
    """By name of a part: the progress that the running process has last written."""
    if not directory.is_dir():
        raise RunError(f"{directory} is no directory")
    parts: dict[str, float] = read_progress(directory)["parts"]
    return parts
