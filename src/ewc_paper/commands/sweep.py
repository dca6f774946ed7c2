"""`ewc sweep NAME`: many runs of an experiment, with options that are listed or drawn at random."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ewc_paper.commands.running import make_engine, other_options, running_options, try_out
from ewc_paper.errors import Interrupted, RunError, fitting_files
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.options import check_options
from ewc_paper.parser import DEFAULT_PRESET, Running, Sweeping, add_options, given_options
from ewc_paper.terminal import complain, console, printable

if TYPE_CHECKING:
    from ewc_paper.experiments.experiment import Experiment
    from ewc_paper.runs.engine import Report
    from ewc_paper.sweeps.sweep import Plan, Sweep


def register(commands: Any, arguments: Sequence[str]) -> None:
    """Add the command to the parser; `arguments` name the experiments whose options it needs."""
    parser = commands.add_parser(
        "sweep", help="run an experiment with many combinations of options"
    )
    names = parser.add_subparsers(required=True, metavar="NAME")
    for name, summary in SUMMARIES.items():
        experiment = names.add_parser(name, help=summary, description=summary)
        if name in arguments:
            experiment.set_defaults(do=run_sweep, experiment=EXPERIMENTS[name])
            add_options(experiment, EXPERIMENTS[name], arguments, sweep=True)


def run_sweep(options: argparse.Namespace) -> int:
    """Run a sweep to its end and show it; options are checked before anything is written."""
    from ewc_paper.page.report import write_report
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.sweeps.sweep import Sweep

    try:
        running = running_options(options)
        sweep = Sweep(_place(options))
        plan = _planned(options, sweep)
        parts = [part for run in sweep.runs(plan) for part in run.config.parts()]
        try_out(sweep.path, parts, running)
    except RunError as error:
        complain(str(error))
        return 2
    sweep.path.mkdir(parents=True, exist_ok=True)
    try:
        with RunDirectory(sweep.path).locked():
            sweep.write(plan)
            failed = _search(sweep, plan, running)
    except Interrupted:
        print(f"interrupted; go on with: ewc sweep {plan.base.name} --out {sweep.path} --resume")
        return 130
    show(sweep.path)
    for trial, why in failed.items():
        complain(f"trial {trial}: {why}")
    try:
        print(f"page: {printable(str(write_report(sweep.path)))}")
    except RunError as error:  # of one damaged trial: the tables are there all the same
        complain(f"no page: {error}")
    return 1 if failed else 0


def _place(options: argparse.Namespace) -> Path:
    experiment: type[Experiment] = options.experiment
    preset = options.preset or DEFAULT_PRESET
    if options.out == "":
        raise RunError("--out must name a directory, got an empty text")
    seed = {"seed": 0, **experiment.presets[preset], **given_options(options, experiment)}["seed"]
    return Path(options.out or Path("runs") / experiment.name / f"sweep-{preset}-{seed}")


def _planned(options: argparse.Namespace, sweep: "Sweep") -> "Plan":
    """What the sweep does: as asked, or as the one there was started, perhaps with more trials."""
    given = given_options(options, Sweeping)
    check_options(Sweeping, given)
    if options.resume and sweep.exists:
        return _resumed(options, sweep, given)
    if sweep.exists:
        raise RunError(f"{sweep.path} exists: continue it with --resume, or choose another --out")
    found = {file.name for file in sweep.path.iterdir()} if sweep.path.is_dir() else set()
    if found - {"sweep.json.new", "lock"} or sweep.path.is_file():
        raise RunError(f"{sweep.path} is not empty and holds no sweep: choose another --out")
    if options.resume and options.out and not found:
        raise RunError(f"{sweep.path} holds no sweep to resume: leave out --resume to start one")
    return _new_plan(options, given)


def _new_plan(options: argparse.Namespace, given: dict[str, Any]) -> "Plan":
    from ewc_paper.sweeps.spec import parse_specs
    from ewc_paper.sweeps.sweep import MAX_TRIALS, Plan, grid_size

    experiment: type[Experiment] = options.experiment
    if not options.over:
        raise RunError("--over must say what to go over, such as --over lr=log:1e-5..1e-3")
    sweeping = Sweeping(**given)
    size = grid_size(parse_specs(options.over, experiment))
    trials = sweeping.trials or size
    if trials is None:
        raise RunError("--trials must say how many combinations to draw, as --over has a range")
    if trials > MAX_TRIALS:
        raise RunError(f"these lists have {trials} combinations: choose --trials, or fewer values")
    return Plan(
        experiment.preset(options.preset or DEFAULT_PRESET, **_changes(options)),
        tuple(options.over),
        trials,
        sweeping.seeds,
        grid=sweeping.trials is None,
        halving=sweeping.halving,
        best_seeds=sweeping.best_seeds,
    )


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """The experiment's options as given, without its seeds: `--seeds` are those of the sweep."""
    changes = given_options(options, options.experiment)
    return {name: value for name, value in changes.items() if name != "seeds"}


def _resumed(options: argparse.Namespace, sweep: "Sweep", given: dict[str, Any]) -> "Plan":
    """What the sweep was started with, with more trials or seeds if asked and no other change."""
    from ewc_paper.sweeps.sweep import extended

    plan = sweep.read()
    if plan.base.name != options.experiment.name:
        raise RunError(
            f"{sweep.path} is a sweep of {plan.base.name}, not {options.experiment.name}"
        )
    other = other_options(plan.base, options.preset, _changes(options), but=("seeds",))
    if options.over and tuple(options.over) != plan.over:
        other.append(f"--over {' '.join(plan.over)}, not {' '.join(options.over)}")
    if given.get("halving", plan.halving) != plan.halving:
        other.append(f"--halving {plan.halving}, not {given['halving']}")
    if other:
        raise RunError(
            f"{sweep.path} was started with {'; '.join(other)}: resume with --out and --resume "
            "alone (--trials, --seeds and --best-seeds may grow), or choose another --out"
        )
    return extended(
        plan,
        trials=given.get("trials"),
        seeds=given.get("seeds"),
        best_seeds=given.get("best_seeds"),
    )


def _search(sweep: "Sweep", plan: "Plan", running: Running) -> dict[int, RunError]:
    """Run what is missing and show how far it is; return the trials that failed, and why."""
    from ewc_paper.live.progress import display
    from ewc_paper.runs.progress_file import ProgressFile
    from ewc_paper.sweeps.search import search

    names = [
        f"{run.directory.name}/{part.name}"
        for run in sweep.runs(plan)
        for part in run.config.parts()
    ]
    with display(names, console()) as shown, ProgressFile(sweep.path) as kept:

        def tell(report: "Report") -> None:
            shown(report)
            kept(report)

        return search(
            sweep,
            plan,
            engine=make_engine(running),
            checkpoint_seconds=running.checkpoint_seconds,
            show=tell,
        )


def is_sweep(directory: str | Path) -> bool:
    return (Path(directory) / "sweep.json").exists()


def show(directory: str | Path, kind: str = "png") -> int:
    """Print the tables of a sweep and draw what was chosen; 1 if trials have failed."""
    from ewc_paper.sweeps.state import FAILED
    from ewc_paper.sweeps.sweep import Sweep
    from ewc_paper.sweeps.table import best_table, ranked, trial_table

    sweep = Sweep(directory)
    plan = sweep.read()
    with fitting_files(sweep.path, "cannot be shown"):
        console().print(trial_table(sweep, plan))
        if sweep.chosen:
            console().print(best_table(sweep, plan))
            _draw_best(sweep, plan, kind)
        failed = [trial for trial in ranked(sweep, plan) if trial.state == FAILED]
    if failed:
        complain(f"{len(failed)} of {plan.trials} trials failed; --resume tries them again")
    return 1 if failed else 0


def _draw_best(sweep: "Sweep", plan: "Plan", kind: str) -> None:
    """Draw the figure of an experiment that has one for the chosen trials."""
    from ewc_paper.experiments.check import drawable
    from ewc_paper.experiments.view import BestView

    chosen = sweep.chosen_directories(plan)
    first = next((runs[0] for runs in chosen.values() if runs), None)
    if first is None:
        return
    with drawable(first) as view:
        if isinstance(view, BestView):
            console().print(view.best_table(chosen))
            for file in view.draw_best(chosen, sweep.figures, kind):
                print(f"figure: {printable(str(file))}")
