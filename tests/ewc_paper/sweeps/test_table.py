"""The table of trials: best first, then what was stopped, what failed and what is missing."""

from collections.abc import Callable
from pathlib import Path

from support.runs import as_text, end, write_run

from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.runs.engine import ERROR
from ewc_paper.sweeps.sweep import Plan, Sweep
from ewc_paper.sweeps.table import best_table, ranked, read_trial, trial_table, was_stopped

Make = Callable[..., None]
BASE = ManyTasks.preset("quick", methods=("ewc",))
PLAN = Plan(BASE, ("lr=0.1,0.2,0.3,0.4,0.5",), 5, 1, grid=True, halving=2.0)


def make_sweep(path: Path) -> Sweep:
    """Trials 0 and 1 are over, 2 was stopped, 3 has failed, and 4 has not begun."""
    sweep = Sweep(path)
    for trial, accuracy in enumerate((0.5, 0.75, 0.9, 0.1)):
        run, config = sweep.directory(trial, 0), PLAN.config(trial, 0)
        parts = {
            part.name: (part.config, [end(0, 0.2, validation=[accuracy])])
            for part in config.parts()
        }
        write_run(run.path, config.to_dict(), parts)
        if trial < 2:
            run.part("ewc-0-seed0").save({}, finished=True)
    on = {"0": True, "1": True, "3": True}
    sweep.goes_on = {"0.25": {**on, "2": False}, "0.5": on}
    (sweep.directory(3, 0).part("ewc-0-seed0").path / ERROR).write_text(
        "T\nOSError: disk \x1b full\n"
    )
    return sweep


def test_trials_are_ranked_by_state_and_score(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    found = [(trial.number, trial.state, trial.scores) for trial in ranked(sweep, PLAN)]
    assert found == [
        (1, "done", [75.0]),
        (0, "done", [50.0]),
        (3, "failed", [10.0]),
        (2, "stopped early", [90.0]),
        (4, "waiting", []),
    ]
    assert was_stopped(sweep, 2)
    assert not was_stopped(sweep, 1)
    assert read_trial(sweep, PLAN, 3).why == "OSError: disk ? full"


def test_the_table_shows_values_scores_and_why(tmp_path: Path) -> None:
    text = as_text(trial_table(make_sweep(tmp_path), PLAN))
    assert "average validation" in text
    lines = [line for line in text.splitlines() if "│" in line]
    assert "0.2" in lines[0]
    assert "75.00" in lines[0]
    assert "failed OSError: disk ? full" in text
    assert "stopped early" in text


def test_the_chosen_are_shown_with_their_scores_on_new_seeds(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    plan = Plan(BASE, PLAN.over, 5, 1, grid=True, best_seeds=2)
    sweep.chosen = {"ewc-1": 1}
    for run, accuracy in zip(sweep.best_runs(plan)["ewc-1"], (0.6, 0.8), strict=True):
        rows = [end(0, 0.2, validation=[accuracy])]
        write_run(run.directory.path, run.config.to_dict(), {"ewc": ({"label": "ewc"}, rows)})
    text = as_text(best_table(sweep, plan))
    assert "ewc-1" in text
    assert "70.00 ± 14.14" in text
