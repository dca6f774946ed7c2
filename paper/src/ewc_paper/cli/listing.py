"""What there is: `ewc list`, the experiments with presets and times, and `ewc runs`, the runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ewc_paper.errors import RunError
from ewc_paper.experiments import SUMMARIES, TIMES
from ewc_paper.terminal import console, printable

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
    experiment: str
    state: str
    result: str
    wrong: bool


def list_runs(options: argparse.Namespace) -> int:
    """Print what is under a directory with its state and result; 1 if something is wrong."""
    from rich.table import Table

    from ewc_paper.experiments import EXPERIMENTS

    top = Path(options.directory)
    if not top.is_dir():
        raise RunError(f"{top} is no directory: `ewc run` writes runs to {RUNS}/NAME/PRESET-SEED")
    runs = [_look_at(path) for path in runs_under(top)]
    if not runs:
        print(f"no run in {printable(str(top))}")
        return 0
    table = Table("run", "experiment", "state")
    table.add_column("result", justify="right")
    for run in runs:
        table.add_row(printable(str(run.path)), run.experiment, run.state, run.result)
    console().print(table)
    for name in dict.fromkeys(run.experiment for run in runs if run.result):
        print(f"result of {name}: {EXPERIMENTS[name].score_means}")
    return 1 if any(run.wrong for run in runs) else 0


def runs_under(top: Path) -> list[Path]:
    """The runs and sweeps in a directory, sorted; those inside another one belong to that."""
    runs: list[Path] = []
    for place in sorted([top, *(path for path in top.rglob("*") if path.is_dir())]):
        inside = any(run in place.parents for run in runs)
        if not inside and any((place / name).exists() for name in ("config.json", "sweep.json")):
            runs.append(place)
    return runs


def _look_at(path: Path) -> Listed:
    from ewc_paper.cli.show import is_sweep, states_in
    from ewc_paper.experiments.view import stored_experiment
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.sweeps.sweep import Sweep

    try:
        if is_sweep(path):
            experiment = Sweep(path).read().base.name
        else:
            experiment = stored_experiment(RunDirectory(path))
        states, damage = states_in(path)
    except (RunError, OSError) as error:
        return Listed(path, "", f"damaged: {printable(str(error))[:80]}", "", True)
    said, wrong = _state(path, states, bool(damage))
    return Listed(path, experiment, said, "" if wrong else _result(path), wrong)


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
    """The score of a run, or the best of a sweep; empty if nothing is measured yet."""
    from ewc_paper.cli.show import is_sweep
    from ewc_paper.errors import fitting_files
    from ewc_paper.experiments import EXPERIMENTS
    from ewc_paper.experiments.view import stored_experiment
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.sweeps.search import mean_score
    from ewc_paper.sweeps.sweep import Sweep

    with fitting_files(path, "cannot be read"):
        if is_sweep(path):
            sweep = Sweep(path)
            plan = sweep.read()
            means = (mean_score(sweep, plan, trial) for trial in range(plan.trials))
            best = max((score for score in means if score is not None), default=None)
            return "" if best is None else f"best {best:.2f}"
        run = RunDirectory(path)
        if not run.parts():
            return ""
        config = EXPERIMENTS[stored_experiment(run)].restored(run.config())
        score = config.score(run)
        return "" if score is None else f"{score:.2f}"
