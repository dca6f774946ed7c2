"""`ewc sweep NAME`: many runs of an experiment, with options that are listed or drawn at random."""

import argparse
from typing import TYPE_CHECKING, Any

from ewc_paper.cli.parser import DEFAULT_PRESET, Running, Sweeping, given_options
from ewc_paper.cli.run import make_engine, other_options, place, running_options, try_out
from ewc_paper.cli.show import show_sweep
from ewc_paper.errors import Interrupted, RunError
from ewc_paper.options import check_options, flag
from ewc_paper.terminal import complain, printable, system_error

if TYPE_CHECKING:
    from ewc_paper.experiments.experiment import Experiment
    from ewc_paper.sweeps.sweep import Plan, Sweep


def run_sweep(options: argparse.Namespace) -> int:
    """Run a sweep to its end and show it; options are checked before anything is written."""
    from ewc_paper.page.report import write_report
    from ewc_paper.runs.checksums import share_sums
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.sweeps.sweep import Sweep

    try:
        running = running_options(options)
        sweep = Sweep(place(options, "sweep-"))
        plan = _planned(options, sweep)
        parts = [part for run in sweep.runs(plan) for part in run.config.parts()]
        try_out(sweep.path, parts, running)
        sweep.path.mkdir(parents=True, exist_ok=True)
    except RunError as error:
        complain(str(error))
        return 2
    except OSError as error:
        complain(system_error(error))
        return 2
    try:
        with RunDirectory(sweep.path).locked():
            share_sums(sweep.path)
            sweep.write(plan)
            failed = _search(sweep, plan, running)
    except Interrupted:
        print(f"interrupted; go on with: ewc sweep {plan.base.name} --out {sweep.path} --resume")
        return 130
    wrong = show_sweep(sweep.path)
    for trial, why in failed.items():
        complain(f"trial {trial}: {why}")
    try:
        print(f"page: {printable(str(write_report(sweep.path)))}")
    except RunError as error:  # of one damaged trial: the tables are there all the same
        complain(f"no page: {error}")
    return 1 if failed or wrong else 0


def _planned(options: argparse.Namespace, sweep: "Sweep") -> "Plan":
    """What the sweep does: as asked, or as the one there was started, perhaps with more trials."""
    given = given_options(options, Sweeping)
    check_options(Sweeping, given)
    if options.resume and sweep.exists:
        return _resumed(options, sweep, given)
    if sweep.exists:
        raise RunError(f"{sweep.path} exists: continue it with --resume, or choose another --out")
    names = {file.name for file in sweep.path.iterdir()} if sweep.path.is_dir() else set()
    if "config.json" in names:
        raise RunError(f"{sweep.path} holds a run, not a sweep: choose another --out")
    if names - {"sweep.json.new", "lock"} or sweep.path.is_file():
        raise RunError(f"{sweep.path} is not empty and holds no sweep: choose another --out")
    if options.resume and options.out and not names:
        raise RunError(f"{sweep.path} holds no sweep to resume: leave out --resume to start one")
    return _new_plan(options, given)


def _new_plan(options: argparse.Namespace, given: dict[str, Any]) -> "Plan":
    from ewc_paper.sweeps.sweep import MAX_TRIALS, Plan, grid_size, parse_specs

    experiment: type[Experiment] = options.experiment
    if not options.over:
        raise RunError("--over must say what to go over, such as --over lr=log:1e-5..1e-3")
    fixed = [spec.field for spec in parse_specs(options.over, experiment)]
    both = [name for name in _changes(options) if name in fixed]
    if both:
        raise RunError(f"{flag(both[0])} is fixed, but --over goes over it too: leave out one")
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
        before = "no --halving" if plan.halving is None else f"--halving {plan.halving:g}"
        other.append(f"{before}, not {given['halving']:g}")
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
    from ewc_paper.cli.progress import follow
    from ewc_paper.sweeps.search import search

    names = [
        f"{run.directory.name}/{part.name}"
        for run in sweep.runs(plan)
        for part in run.config.parts()
    ]
    engine = make_engine(running)
    reports = search(sweep, plan, engine=engine, checkpoint_seconds=running.checkpoint_seconds)
    return follow(reports, names, sweep.path, plan.base)
