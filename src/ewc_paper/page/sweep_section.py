"""The section of a sweep: what was searched, the chosen trials on new seeds, and all trials."""

from collections.abc import Iterator

from ewc_paper.errors import fitting_files
from ewc_paper.experiments import SUMMARIES
from ewc_paper.experiments.check import check_run, drawable
from ewc_paper.experiments.view import BestView
from ewc_paper.page.command_line import sweeping_command
from ewc_paper.page.markup import Markup, tag
from ewc_paper.page.sections import (
    command_markup,
    fact_card,
    figure_markup,
    option_table,
    paper_card,
)
from ewc_paper.page.tables import terminal_tables
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.sweeps.sweep import Plan, Sweep
from ewc_paper.sweeps.table import best_table, trial_table


def sweep_section(sweep: Sweep, identifier: str, budget: int) -> Markup:
    """Return all there is to say about a sweep.

    Args:
        sweep: the sweep; raises RunError if its files are damaged.
        identifier: of the heading in the page.
        budget: bytes that its figures may need; one that needs more is left out.
    """
    plan = sweep.read()
    with fitting_files(sweep.path, "cannot be shown"):
        parts = [*_results(sweep, plan, identifier, budget), *_tables(sweep, plan)]
    return tag(
        "section",
        tag("h2", f"A sweep of {plan.base.name}", id=identifier),
        tag("p", SUMMARIES[plan.base.name], class_="lead"),
        *parts,
        command_markup(sweeping_command(plan)),
        option_table(plan.base.to_dict()),
        aria_labelledby=identifier,
        class_="run",
    )


def _results(sweep: Sweep, plan: Plan, identifier: str, budget: int) -> Iterator[Markup]:
    """Yield what was searched, the paper beside it, and the figures and numbers of what won."""
    chosen = sweep.chosen_directories(plan)
    begun = [run for runs in chosen.values() for run in runs]
    begun += [run.directory for run in sweep.runs(plan) if run.directory.parts()]
    if not begun:
        yield _facts(sweep, plan)
        return
    for path in dict.fromkeys(run.path for run in begun):
        check_run(RunDirectory(path))
    with drawable(begun[0]) as view:
        yield tag("div", _facts(sweep, plan), paper_card(view.PAPER), class_="beside")
        if isinstance(view, BestView) and any(chosen.values()):
            yield from figure_markup(view.best_figures(chosen), identifier, budget)
            yield tag("h3", "The numbers")
            yield from terminal_tables(view.best_table(chosen))


def _facts(sweep: Sweep, plan: Plan) -> Markup:
    facts = {"experiment": plan.base.name}
    facts |= {spec.partition("=")[0]: spec.partition("=")[2] for spec in plan.over}
    facts |= {"trials": str(plan.trials), "seeds of the search": _range(plan.search_seeds)}
    if plan.halving is not None:
        facts["halving"] = f"{plan.halving:g}"
    if plan.best_seeds:
        facts["seeds that report"] = _range(plan.reporting_seeds)
    running = RunDirectory(sweep.path).is_being_written()
    return fact_card("This sweep", facts | {"state": "running" if running else "not running"})


def _range(seeds: range) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _tables(sweep: Sweep, plan: Plan) -> Iterator[Markup]:
    """Yield the chosen trials and all trials, best first."""
    yield tag("h3", "The trials")
    if sweep.chosen:
        yield from terminal_tables(best_table(sweep, plan))
    every = list(terminal_tables(trial_table(sweep, plan)))
    where = f"Each trial is a run of its own: ewc report {sweep.path.name}/trials/0000-seed"
    note = tag("p", f"{where}{plan.base.seed} shows the first one.")
    yield tag("details", tag("summary", "All trials, the best first"), *every, note)
