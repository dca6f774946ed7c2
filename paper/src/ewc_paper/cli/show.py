"""The commands that look at a run or a sweep: `ewc figure`, `status`, `report` and `watch`."""

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ewc_paper.errors import BadOption, RunError, fitting_files
from ewc_paper.terminal import complain, console, printable

if TYPE_CHECKING:
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.runs.progress import PartState
    from ewc_paper.sweeps.sweep import Plan, Sweep

MAX_NAMED = 20  # of what is wrong


def show_figures(options: argparse.Namespace) -> int:
    from ewc_paper.runs.directory import RunDirectory

    if is_sweep(options.directory):
        return show_sweep(options.directory, options.format)
    show_run(RunDirectory(options.directory), options.format)
    return 0


def show_run(run: "RunDirectory", suffix: str = "png") -> None:
    """Print the table of a run and draw its figures, once its files are checked."""
    from ewc_paper.experiments.view import draw, drawable

    with drawable(run) as view:
        if not run.parts():
            raise RunError(f"{run.path} has nothing to draw: no network of it has begun")
        console().print(view.table(run))
        for file in draw(view, run, suffix):
            print(f"figure: {printable(str(file))}")


def is_sweep(directory: str | Path) -> bool:
    return os.path.lexists(Path(directory) / "sweep.json")  # also one that is damaged


def show_sweep(directory: str | Path, suffix: str = "png") -> int:
    """Print the tables of a sweep and draw what was chosen; 1 if trials have failed or damage."""
    from ewc_paper.runs.progress import DAMAGED, FAILED
    from ewc_paper.sweeps.sweep import Sweep
    from ewc_paper.sweeps.table import best_table, damage_of, ranked, trial_table

    sweep = Sweep(directory)
    plan = sweep.read()
    sweep.check()
    with fitting_files(sweep.path, "cannot be shown"):
        trials = ranked(sweep, plan)
        console().print(trial_table(sweep, plan, trials))
        best = [run for runs in sweep.best_runs(plan).values() for run in runs]
        damage = {f"trial {trial.number}": trial.why for trial in trials if trial.state == DAMAGED}
        damage |= {run.directory.name: why for run in best if (why := damage_of(sweep, run))}
        if sweep.chosen and not damage:
            console().print(best_table(sweep, plan))
            _draw_best(sweep, plan, suffix)
    failed = sum(trial.state == FAILED for trial in trials)
    if failed:
        complain(f"{failed} of {plan.trials} trials failed; --resume tries them again")
    for name, why in list(damage.items())[:MAX_NAMED]:
        complain(f"{name} is damaged, --resume runs it again: {why}")
    if len(damage) > MAX_NAMED:
        complain(f"{len(damage) - MAX_NAMED} more are damaged")
    return 1 if failed or damage else 0


def _draw_best(sweep: "Sweep", plan: "Plan", suffix: str) -> None:
    """Draw the figure of an experiment that has one for the chosen trials."""
    from ewc_paper.experiments.view import BestView, drawable
    from ewc_paper.figures.plot import draw_figures

    chosen = sweep.chosen_directories(plan)
    first = next((runs[0] for runs in chosen.values() if runs), None)
    if first is None:
        return
    with drawable(first) as view:
        if isinstance(view, BestView):
            console().print(view.best_table(chosen))
            for file in draw_figures(view.best_figures(chosen), sweep.figures, suffix):
                print(f"figure: {printable(str(file))}")


def show_status(options: argparse.Namespace) -> int:
    """Say what is done, running, failed or damaged and why; 1 if anything has to be looked at."""
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.runs.progress import WRONG, counts, seconds_left

    directory = Path(options.directory)
    states, damage = states_in(directory)
    done = sum(state.progress for state in states) / len(states)
    said = ", ".join(f"{count} {state}" for state, count in counts(states).items())
    live = "running" if RunDirectory(directory).is_being_written() else "not running"
    print(f"{live}: {said} of {len(states)} networks")
    left = seconds_left(directory, states)
    print(f"{100 * done:.1f} % done" + ("" if left is None else f", {duration(left)} left"))
    wrong = [state for state in states if state.state in WRONG]
    for state in wrong[:MAX_NAMED]:
        print(printable(f"{state.state}: {state.name}: {state.why}"))
    if len(wrong) > MAX_NAMED:
        print(f"and {len(wrong) - MAX_NAMED} more")
    for why in damage[:MAX_NAMED]:
        print(printable(f"damaged: {why}"))
    return 1 if wrong or damage else 0


def states_in(directory: Path) -> "tuple[list[PartState], list[str]]":
    """How far every network of a run or a sweep is, and what is wrong with the rest of it."""
    with fitting_files(directory, "cannot be read"):
        return _sweep_states(directory) if is_sweep(directory) else _run_states(directory)


def _run_states(directory: Path) -> "tuple[list[PartState], list[str]]":
    from ewc_paper.experiments import EXPERIMENTS
    from ewc_paper.experiments.view import check_part, check_run, stored_experiment
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.runs.progress import WRONG, parts_of, told_progress

    run = RunDirectory(directory)
    planned = EXPERIMENTS[stored_experiment(run)].restored(run.config()).parts()
    told, live = told_progress(directory), run.is_being_written()
    states = parts_of(run, planned, told, live, partial(check_part, run))
    if not live and not any(state.state in WRONG for state in states):
        try:
            check_run(run)
        except RunError as error:
            return states, [str(error)]
    return states, []


def _sweep_states(directory: Path) -> "tuple[list[PartState], list[str]]":
    from ewc_paper.experiments.view import check_part
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.runs.progress import DAMAGED, STOPPED, WAITING, parts_of, told_progress
    from ewc_paper.sweeps.sweep import Sweep
    from ewc_paper.sweeps.table import damage_of, was_stopped

    sweep = Sweep(directory)
    plan = sweep.read()
    sweep.check()
    live, told = RunDirectory(directory).is_being_written(), told_progress(directory)
    best = {run.directory.path: run for runs in sweep.best_runs(plan).values() for run in runs}
    all_states: list[PartState] = []
    damage: list[str] = []
    for run in [*sweep.runs(plan), *best.values()]:
        states = parts_of(
            run.directory,
            run.config.parts(),
            told,
            live,
            partial(check_part, run.directory),
            f"{run.directory.name}/",
        )
        stopped = run.directory.path not in best and was_stopped(sweep, run.trial)
        all_states += [
            state._replace(state=STOPPED) if stopped and state.state == WAITING else state
            for state in states
        ]
        damaged = any(state.state == DAMAGED for state in states)
        if not live and not damaged and (why := damage_of(sweep, run)):
            damage.append(why)
    return all_states, damage


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


def write_page(options: argparse.Namespace) -> int:
    """Write the page, and say where it is."""
    from ewc_paper.page.report import FILE_NAME, build_page
    from ewc_paper.runs.files import refuse_link, replace_file

    directories = [Path(directory) for directory in options.directories]
    place = directories[0] if len(directories) == 1 else Path()
    file = Path(options.out) if options.out else place / FILE_NAME
    if options.out and file.is_dir():
        raise BadOption(f"--out must name a file, {file} is a directory")
    refuse_link(file)
    replace_file(file, build_page(directories))
    print(f"page: {printable(str(file))}")
    return 0


def watch_page(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from ewc_paper.page.watch import serve

    if not 0 <= options.port <= 65_535:
        raise BadOption(f"--port must be 0 to 65535, got {options.port}")
    serve(Path(options.directory), options.port)
    return 0
