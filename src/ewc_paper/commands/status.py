"""`ewc status DIR`: how far a run or a sweep is, what failed and why, and the time left."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ewc_paper.commands.sweep import is_sweep
from ewc_paper.terminal import printable

if TYPE_CHECKING:
    from ewc_paper.sweeps.state import PartState

MAX_FAILED = 20  # that are named


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("status", help="say how far a run or a sweep is")
    parser.add_argument("directory", metavar="DIR", help="the directory of the run or sweep")
    parser.set_defaults(do=show_status)


def show_status(options: argparse.Namespace) -> int:
    """Say what is done, running, failed and why, and how long the rest will take."""
    from ewc_paper.sweeps.state import FAILED, counts, is_live, seconds_left

    directory = Path(options.directory)
    states = _sweep_states(directory) if is_sweep(directory) else _run_states(directory)
    done = sum(state.progress for state in states) / len(states)
    said = ", ".join(f"{count} {state}" for state, count in counts(states).items())
    print(f"{'running' if is_live(directory) else 'not running'}: {said} of {len(states)} networks")
    left = seconds_left(directory, states)
    print(f"{100 * done:.1f} % done" + ("" if left is None else f", {duration(left)} left"))
    failed = [state for state in states if state.state == FAILED]
    for state in failed[:MAX_FAILED]:
        print(printable(f"failed: {state.name}: {state.why}"))
    if len(failed) > MAX_FAILED:
        print(f"and {len(failed) - MAX_FAILED} more failed")
    return 0


def _run_states(directory: Path) -> "list[PartState]":
    from ewc_paper.errors import RunError
    from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.sweeps.state import is_live, parts_of, told_progress

    run = RunDirectory(directory)
    config = run.config()
    if config.get("experiment") not in SUMMARIES:
        raise RunError(f"{directory} holds a run of {config.get('experiment')}, which is not known")
    parts = EXPERIMENTS[config["experiment"]].from_dict(config).parts()
    return parts_of(run, parts, told_progress(directory), is_live(directory))


def _sweep_states(directory: Path) -> "list[PartState]":
    from ewc_paper.sweeps.state import STOPPED, WAITING, is_live, parts_of, told_progress
    from ewc_paper.sweeps.sweep import Sweep
    from ewc_paper.sweeps.table import was_stopped

    sweep = Sweep(directory)
    plan = sweep.read()
    live, told = is_live(directory), told_progress(directory)
    best = {run.directory.path: run for runs in sweep.best_runs(plan).values() for run in runs}
    found = []
    for run in [*sweep.runs(plan), *best.values()]:
        states = parts_of(run.directory, run.config.parts(), told, live, f"{run.directory.name}/")
        stopped = run.directory.path not in best and was_stopped(sweep, run.trial)
        found += [
            state._replace(state=STOPPED) if stopped and state.state == WAITING else state
            for state in states
        ]
    return found


def duration(seconds: float) -> str:
    """A time as people say it: 45 seconds, 12 minutes, 3.5 hours, 2.1 days."""
    for unit, size, below in (("seconds", 1, 120), ("minutes", 60, 120), ("hours", 3600, 48)):
        if seconds / size < below:
            return (
                f"{seconds / size:.1f} {unit}"
                if unit == "hours"
                else f"{seconds / size:.0f} {unit}"
            )
    return f"{seconds / 86_400:.1f} days"
