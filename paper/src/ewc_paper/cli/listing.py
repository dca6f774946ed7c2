"""What there is: `ewc list`, the experiments with presets and times, and `ewc runs`, the runs."""

import argparse
import os
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ewc_paper.errors import RunError
from ewc_paper.experiments import SUMMARIES, TIMES
from ewc_paper.terminal import printable

if TYPE_CHECKING:
    from ewc_paper.runs.progress import PartState

RUNS = "runs"  # where runs are written unless --out says otherwise


def list_experiments(options: argparse.Namespace) -> int:
    """Print each experiment with its presets and the times that they take."""
    for name, summary in SUMMARIES.items():
        print(f"{name:16} {summary}")
        presets = (f"{preset} {time}" if time else preset for preset, time in TIMES[name].items())
        print(f"{'':16} {' · '.join(presets)}")
    print("\nTimes are those of two cores, about; where there is none, it was not run or measured.")
    return 0


class Listed(NamedTuple):
    """What is said about a run or a sweep."""

    path: Path
    state: str
    result: str
    wrong: bool


def list_runs(options: argparse.Namespace) -> int:
    """Print what is under a directory with its state and result; 1 if something is wrong."""
    top = Path(options.directory)
    if not top.is_dir():
        raise RunError(f"{top} is no directory: `ewc run` writes runs to {RUNS}/NAME/PRESET-SEED")
    runs = [_look_at(path) for path in runs_under(top)]
    if not runs:
        print(f"no run in {printable(str(top))}")
    for run in runs:
        print(printable(str(run.path)))
        for text in (run.state, run.result):
            print(_indented(text), end="")
    return 1 if any(run.wrong for run in runs) else 0


def _indented(text: str) -> str:
    """The text below a heading, in lines that fit the terminal."""
    width = max(40, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        printable(text),
        width,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,  # a path is there to be copied
        break_on_hyphens=False,
    )
    return "".join(f"{line}\n" for line in lines)


INDENT = " " * 4
HELD = ("sweep.json", "parts/*/config.json", "trials/*/config.json")


def runs_under(top: Path) -> list[Path]:
    """The runs and sweeps in a directory, sorted; those inside another one belong to that.

    One that has lost its own config.json or sweep.json is still known by what is in it.
    """
    runs: list[Path] = []
    for place in sorted([top, *(path for path in top.rglob("*") if path.is_dir())]):
        inside = any(run in place.parents for run in runs)
        held = any(any(place.glob(pattern)) for pattern in HELD)
        if not inside and (held or _is_run(place)):
            runs.append(place)
    return runs


def _is_run(place: Path) -> bool:
    """Whether a config.json is that of a run, be it damaged: other programs have such files too."""
    from ewc_paper.runs.directory import RunDirectory

    if not os.path.lexists(place / "config.json"):
        return False
    try:
        return "experiment" in RunDirectory(place).config()
    except (RunError, OSError):
        return True


def _look_at(path: Path) -> Listed:
    from ewc_paper.cli.show import is_sweep, states_in
    from ewc_paper.experiments.view import stored_experiment
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.sweeps.sweep import Sweep

    try:
        if is_sweep(path):
            experiment = f"a sweep of {Sweep(path).read().base.name}"
        else:
            experiment = stored_experiment(RunDirectory(path))
        states, damage = states_in(path)
        said, wrong = _state(path, states, bool(damage))
        result = "" if wrong else _result(path)
    except (RunError, OSError) as error:
        return Listed(path, f"damaged: {error}", "", True)
    return Listed(path, f"{experiment}: {said}", result, wrong)


def _state(path: Path, states: "list[PartState]", damaged: bool) -> tuple[str, bool]:
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.runs.progress import DAMAGED, DONE, WRONG, counts

    counted = counts(states)
    if damaged and not counted.get(DAMAGED):
        counted[DAMAGED] = 1
    wrong = any(counted.get(state) for state in WRONG)
    live = "running: " if RunDirectory(path).is_being_written() else ""
    if counted.keys() == {DONE}:
        return f"{live}{counted[DONE]} done", False
    return live + ", ".join(f"{count} {state}" for state, count in counted.items()), wrong


def _result(path: Path) -> str:
    """The result in one sentence, as on the page; empty if there is none yet."""
    from ewc_paper.cli.show import is_sweep
    from ewc_paper.errors import fitting_files
    from ewc_paper.experiments.view import view_of
    from ewc_paper.runs.directory import RunDirectory

    with fitting_files(path, "cannot be read"):
        if is_sweep(path):
            return _result_of_sweep(path)
        run = RunDirectory(path)
        return view_of(run).result(run) if run.parts() else ""


def _result_of_sweep(path: Path) -> str:
    """What the chosen trials have on new seeds, or the score of the best trial so far."""
    from ewc_paper.experiments.view import BestView, view_of
    from ewc_paper.sweeps.search import mean_score
    from ewc_paper.sweeps.sweep import Sweep

    sweep = Sweep(path)
    plan = sweep.read()
    chosen = sweep.chosen_directories(plan)
    first = next((runs[0] for runs in chosen.values() if runs), None)
    if first is not None and isinstance(view := view_of(first), BestView):
        return view.best_result(chosen)
    scores = {trial: mean_score(sweep, plan, trial) for trial in range(plan.trials)}
    known = {trial: score for trial, score in scores.items() if score is not None}
    if not known:
        return ""
    best = max(known, key=lambda trial: known[trial])
    return f"Best so far is trial {best} with {known[best]:.2f}: {plan.base.score_means}."
