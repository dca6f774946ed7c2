"""Runs a sweep: its trials, rung by rung if hopeless ones are stopped early, then the best again.

What a later step depends on is written to `sweep.json` before that step begins. So a sweep killed
at any moment is resumed with the same decisions, and ends with the same table. How good a trial is
says the experiment's own score, as a mean over the seeds of the search.
"""

import math
from collections.abc import Container, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import fmean

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.runs.checksums import seal, share_sums
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Engine, Job, Report, start_again
from ewc_paper.sweeps.sweep import Plan, Run, Sweep


def is_finished(run: RunDirectory, config: Experiment) -> bool:
    """Whether all parts of a run have come to their ends."""
    return all(run.part(part.name).says_finished() for part in config.parts())


def scores(sweep: Sweep, plan: Plan, trial: int) -> list[float]:
    """The score of each run of a trial that has one."""
    runs = [sweep.directory(trial, seed) for seed in plan.search_seeds]
    every_score = [plan.base.score(run) for run in runs if run.parts()]
    return [score for score in every_score if score is not None]


def mean_score(sweep: Sweep, plan: Plan, trial: int) -> float | None:
    """The mean score of a trial; None if no run of it has one."""
    known = scores(sweep, plan, trial)
    return fmean(known) if known else None


def mean_points(runs: Sequence[RunDirectory], configs: Sequence[Experiment]) -> dict[str, float]:
    """By what is chosen for on its own: the mean over runs of what `Experiment.points` says."""
    by_run = [config.points(run) for run, config in zip(runs, configs, strict=True)]
    shared = [point for point in by_run[0] if all(point in points for points in by_run)]
    return {point: fmean(points[point] for points in by_run) for point in shared}


WRITERS = 16  # threads that start run directories: they wait for the disk, or the network


def rungs(halving: float | None) -> list[float]:
    """Progress at which trials are compared and only one of `halving` goes on."""
    return [] if halving is None else [halving**-2, halving**-1]


def search(
    sweep: Sweep,
    plan: Plan,
    *,
    engine: Engine,
    checkpoint_seconds: float,
) -> Generator[Report, None, dict[int, RunError]]:
    """Run all of a sweep that is missing; a trial that fails does not end it.

    Args:
        sweep: its directory.
        plan: what to run.
        engine: where to run it.
        checkpoint_seconds: time between two checkpoints of a part.

    Yields:
        The reports of all parts.

    Returns:
        The trials that failed, and why.
    """
    failed: dict[int, RunError] = {}
    share_sums(sweep.path)

    def run_all(runs: Sequence[Run], until: float) -> Iterator[Report]:
        with ThreadPoolExecutor(WRITERS) as pool:
            jobs = list(pool.map(lambda run: _jobs(run, until), runs))
        trial_of = {
            job.name: run.trial for run, some in zip(runs, jobs, strict=True) for job in some
        }

        every = [job for some in jobs for job in some]
        with closing(engine.run(every, checkpoint_seconds=checkpoint_seconds)) as events:
            for event in events:
                if isinstance(event, Report):
                    yield event
                elif event.error is not None:
                    failed[trial_of[event.part]] = event.error

    for rung in rungs(plan.halving):
        undecided = _undecided(sweep, plan, rung, failed)
        yield from run_all([run for run in sweep.runs(plan) if run.trial in undecided], rung)
        _decide(sweep, plan, rung, [trial for trial in undecided if trial not in failed])
    going_on = {trial for trial in range(plan.trials) if goes_on(sweep, plan, trial)}
    left = [run for run in sweep.runs(plan) if run.trial in going_on - failed.keys()]
    yield from run_all(left, 1.0)
    if plan.best_seeds:
        sweep.chosen = choose(sweep, plan, failed)
        sweep.write(plan)
        runs = [run for runs in sweep.best_runs(plan).values() for run in runs]
        yield from run_all(list({run.directory.path: run for run in runs}.values()), 1.0)
    seal(sweep.path)
    return failed


def goes_on(sweep: Sweep, plan: Plan, trial: int, below: float = 1.0) -> bool:
    """Whether a trial has passed all rungs below some progress."""
    passed = [sweep.goes_on.get(f"{rung:g}", {}) for rung in rungs(plan.halving) if rung < below]
    return all(decisions.get(str(trial), False) for decisions in passed)


def _undecided(sweep: Sweep, plan: Plan, rung: float, failed: Container[int]) -> list[int]:
    """Trials that have come to this rung, and are not yet compared there."""
    decided = sweep.goes_on.get(f"{rung:g}", {})
    return [
        trial
        for trial in range(plan.trials)
        if goes_on(sweep, plan, trial, below=rung)
        and str(trial) not in decided
        and trial not in failed
    ]


def _decide(sweep: Sweep, plan: Plan, rung: float, trials: Sequence[int]) -> None:
    """Let the best of the trials go on, and those that have no score yet."""
    assert plan.halving is not None
    scores = {trial: mean_score(sweep, plan, trial) for trial in trials}
    known = {trial: score for trial, score in scores.items() if score is not None}
    best = sorted(known, key=lambda trial: (-known[trial], trial))
    kept = set(best[: math.ceil(len(best) / plan.halving)])
    decisions = sweep.goes_on.setdefault(f"{rung:g}", {})
    decisions |= {str(trial): trial in kept or trial not in known for trial in trials}
    sweep.write(plan)


def choose(sweep: Sweep, plan: Plan, failed: Container[int] = ()) -> dict[str, int]:
    """By what is chosen for: the finished trial with the best score; the first of equals."""
    best: dict[str, tuple[float, int]] = {}
    for trial in range(plan.trials):
        if trial in failed:
            continue
        runs = [sweep.directory(trial, seed) for seed in plan.search_seeds]
        configs = [plan.config(trial, seed) for seed in plan.search_seeds]
        if not all(map(is_finished, runs, configs)):
            continue
        for point, score in mean_points(runs, configs).items():
            if point not in best or score > best[point][0]:
                best[point] = (score, trial)
    return {point: trial for point, (_, trial) in best.items()}


def _jobs(run: Run, until: float) -> list[Job]:
    """The parts of a run, whose directory is started if it is not there."""
    start_again(run.directory, run.config.to_dict())
    return [
        Job(
            f"{run.directory.name}/{part.name}",
            run.directory.part(part.name).path,
            part,
            until=until,
            mend=True,
        )
        for part in run.config.parts()
    ]
