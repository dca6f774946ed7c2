"""How good a trial is: the experiment's own score, as a mean over the seeds of the search."""

from collections.abc import Sequence
from statistics import fmean

from ewc_paper.experiments.experiment import Experiment
from ewc_paper.runs.checkpoint import says_finished
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.sweeps.sweep import Plan, Sweep


def is_finished(run: RunDirectory, config: Experiment) -> bool:
    """Whether all parts of a run have come to their ends."""
    return all(says_finished(run.part(part.name).path) for part in config.parts())


def scores(sweep: Sweep, plan: Plan, trial: int) -> list[float]:
    """The score of each run of a trial that has one."""
    runs = [sweep.directory(trial, seed) for seed in plan.search_seeds]
    found = [plan.base.score(run) for run in runs if run.parts()]
    return [score for score in found if score is not None]


def mean_score(sweep: Sweep, plan: Plan, trial: int) -> float | None:
    """The mean score of a trial; None if no run of it has one."""
    found = scores(sweep, plan, trial)
    return fmean(found) if found else None


def mean_points(runs: Sequence[RunDirectory], configs: Sequence[Experiment]) -> dict[str, float]:
    """By what is chosen for on its own: the mean over runs of what `Experiment.points` says."""
    found = [config.points(run) for run, config in zip(runs, configs, strict=True)]
    shared = [point for point in found[0] if all(point in one for one in found)]
    return {point: fmean(one[point] for one in found) for point in shared}
