"""The tables of a sweep: its trials, best first, and the chosen ones on new seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.table import Table

from ewc_paper.errors import RunError
from ewc_paper.figures.names import mean_and_deviation
from ewc_paper.options import format_value
from ewc_paper.runs.progress import DAMAGED, DONE, FAILED, STATES, STOPPED, WAITING, why_failed
from ewc_paper.sweeps.search import goes_on, is_finished, scores
from ewc_paper.sweeps.sweep import Plan, Run, Sweep, Values
from ewc_paper.terminal import printable


@dataclass(frozen=True)
class Trial:
    """What the table shows of a trial."""

    number: int
    values: Values
    scores: list[float]  # one per seed
    state: str
    why: str  # it failed, or is damaged

    @property
    def rank(self) -> tuple[int, float, int]:
        """Finished trials come first, and among them those with the best score."""
        score = fmean(self.scores) if self.scores else float("-inf")
        return (STATES.index(self.state), -score, self.number)


def ranked(sweep: Sweep, plan: Plan) -> list[Trial]:
    """All trials, the best first."""
    return sorted(
        (read_trial(sweep, plan, number) for number in range(plan.trials)), key=lambda t: t.rank
    )


def read_trial(sweep: Sweep, plan: Plan, number: int) -> Trial:
    """Read what a trial has come to; one with damaged files has no score."""
    state, why = _state(sweep, plan, number)
    known = scores(sweep, plan, number) if state != DAMAGED else []
    return Trial(number, plan.values(number), known, state, why)


def _state(sweep: Sweep, plan: Plan, number: int) -> tuple[str, str]:
    runs = [
        Run(number, sweep.directory(number, seed), plan.config(number, seed))
        for seed in plan.search_seeds
    ]
    if damage := next(filter(None, (damage_of(sweep, run) for run in runs)), ""):
        return DAMAGED, damage
    for run in runs:
        for part in run.config.parts():
            if why := why_failed(run.directory.part(part.name).path):
                return FAILED, why
    if all(is_finished(run.directory, run.config) for run in runs):
        return DONE, ""
    stopped = not goes_on(sweep, plan, number) and was_stopped(sweep, number)
    return (STOPPED if stopped else WAITING), ""


def damage_of(sweep: Sweep, run: Run) -> str:
    """What is wrong with the files of a run, in a line; empty if nothing is."""
    try:
        sweep.check_run(run)
    except (RunError, OSError) as error:
        return printable(str(error))
    return ""


def was_stopped(sweep: Sweep, number: int) -> bool:
    return any(decided.get(str(number)) is False for decided in sweep.goes_on.values())


def trial_table(sweep: Sweep, plan: Plan, trials: Sequence[Trial] | None = None) -> Table:
    """All trials with their values and scores, best first."""
    table = Table("trial", title=f"{plan.base.name}, score: {plan.base.score_means}")
    for spec in plan.specs:
        table.add_column(spec.field.replace("_", "-"), justify="right")
    table.add_column("score", justify="right")
    table.add_column("")
    for trial in ranked(sweep, plan) if trials is None else trials:
        values = [format_value(value) for value in trial.values.values()]
        score = mean_and_deviation(trial.scores) if trial.scores else ""
        said = " ".join(filter(None, (trial.state if trial.state != DONE else "", trial.why)))
        table.add_row(str(trial.number), *values, score, said)
    return table


def best_table(sweep: Sweep, plan: Plan) -> Table:
    """The chosen trials, by what they were chosen for, with their scores on the new seeds."""
    table = Table("best for", "trial", title="chosen trials, on seeds that chose nothing")
    for spec in plan.specs:
        table.add_column(spec.field.replace("_", "-"), justify="right")
    table.add_column("score", justify="right")
    for point, runs in sweep.best_runs(plan).items():
        by_run = [run.config.points(run.directory) for run in runs]
        on_new_seeds = [points[point] for points in by_run if point in points]
        values = [format_value(value) for value in plan.values(sweep.chosen[point]).values()]
        score = mean_and_deviation(on_new_seeds) if on_new_seeds else ""
        table.add_row(point, str(sweep.chosen[point]), *values, score)
    return table
