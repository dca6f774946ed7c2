"""The tables of a sweep: its trials, best first, and the chosen ones on new seeds."""

from dataclasses import dataclass
from statistics import fmean

from rich.table import Table

from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.options import plain
from ewc_paper.sweeps.scores import is_finished, scores
from ewc_paper.sweeps.search import goes_on
from ewc_paper.sweeps.state import DONE, FAILED, STATES, STOPPED, WAITING, why_failed
from ewc_paper.sweeps.sweep import Plan, Sweep, Values


@dataclass(frozen=True)
class Trial:
    """What the table shows of a trial."""

    number: int
    values: Values
    scores: list[float]  # one per seed
    state: str
    why: str  # it failed

    @property
    def rank(self) -> tuple[int, float, int]:
        """Finished trials come first, and among them those with the best score."""
        score = fmean(self.scores) if self.scores else float("-inf")
        return (STATES.index(self.state), -score, self.number)


def ranked(sweep: Sweep, plan: Plan) -> list[Trial]:
    """All trials, the best first."""
    return sorted(
        (read_trial(sweep, plan, one) for one in range(plan.trials)), key=lambda t: t.rank
    )


def read_trial(sweep: Sweep, plan: Plan, number: int) -> Trial:
    """Read what a trial has come to."""
    state, why = _state(sweep, plan, number)
    return Trial(number, plan.values(number), scores(sweep, plan, number), state, why)


def _state(sweep: Sweep, plan: Plan, number: int) -> tuple[str, str]:
    runs = [
        (sweep.directory(number, seed), plan.config(number, seed)) for seed in plan.search_seeds
    ]
    for run, config in runs:
        for part in config.parts():
            if why := why_failed(run.part(part.name).path):
                return FAILED, why
    if all(is_finished(run, config) for run, config in runs):
        return DONE, ""
    stopped = not goes_on(sweep, plan, number) and was_stopped(sweep, number)
    return (STOPPED if stopped else WAITING), ""


def was_stopped(sweep: Sweep, number: int) -> bool:
    return any(decided.get(str(number)) is False for decided in sweep.goes_on.values())


def trial_table(sweep: Sweep, plan: Plan) -> Table:
    """All trials with their values and scores, best first."""
    table = Table("trial", title=f"{plan.base.name}, score: {plan.base.score_means}")
    for spec in plan.specs:
        table.add_column(spec.field.replace("_", "-"), justify="right")
    table.add_column("score", justify="right")
    table.add_column("")
    for trial in ranked(sweep, plan):
        values = [plain(value) for value in trial.values.values()]
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
        found = [run.config.points(run.directory) for run in runs]
        on_new_seeds = [points[point] for points in found if point in points]
        values = [plain(value) for value in plan.values(sweep.chosen[point]).values()]
        score = mean_and_deviation(on_new_seeds) if on_new_seeds else ""
        table.add_row(point, str(sweep.chosen[point]), *values, score)
    return table
