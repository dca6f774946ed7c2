"""Runs a sweep: its trials, rung by rung if hopeless ones are stopped early, then the best again.

What a later step depends on is written to `sweep.json` before that step begins. So a sweep killed
at any moment is resumed with the same decisions, and ends with the same table.
"""

import math
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor

from ewc_paper.errors import RunError
from ewc_paper.runs.engine import Ended, Engine, Job, Report, start_again
from ewc_paper.sweeps.scores import is_finished, mean_points, mean_score
from ewc_paper.sweeps.sweep import Plan, Run, Sweep

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
    show: Callable[[Report], None],
) -> dict[int, RunError]:
    """Run all of a sweep that is missing; a trial that fails does not end it.

    Args:
        sweep: its directory.
        plan: what to run.
        engine: where to run it.
        checkpoint_seconds: time between two checkpoints of a part.
        show: called with every report, in this process.

    Returns:
        The trials that failed, and why.
    """
    failed: dict[int, RunError] = {}

    def run_all(runs: Sequence[Run], until: float) -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            jobs = list(pool.map(lambda run: _jobs(run, until), runs))
        trial_of = {
            job.name: run.trial for run, some in zip(runs, jobs, strict=True) for job in some
        }

        def tell(news: Report | Ended) -> None:
            if isinstance(news, Report):
                show(news)
            elif news.error is not None:
                failed[trial_of[news.part]] = news.error

        every = [job for some in jobs for job in some]
        engine.run(every, checkpoint_seconds=checkpoint_seconds, tell=tell)

    for rung in rungs(plan.halving):
        undecided = _undecided(sweep, plan, rung, failed)
        run_all([run for run in sweep.runs(plan) if run.trial in undecided], rung)
        _decide(sweep, plan, rung, [trial for trial in undecided if trial not in failed])
    going_on = {trial for trial in range(plan.trials) if goes_on(sweep, plan, trial)}
    run_all([run for run in sweep.runs(plan) if run.trial in going_on - failed.keys()], 1.0)
    if plan.best_seeds:
        sweep.chosen = choose(sweep, plan)
        sweep.write(plan)
        runs = [run for runs in sweep.best_runs(plan).values() for run in runs]
        run_all(list({run.directory.path: run for run in runs}.values()), 1.0)
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


def choose(sweep: Sweep, plan: Plan) -> dict[str, int]:
    """By what is chosen for: the finished trial with the best score; the first of equals."""
    best: dict[str, tuple[float, int]] = {}
    for trial in range(plan.trials):
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
