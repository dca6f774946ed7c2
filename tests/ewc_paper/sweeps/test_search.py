"""Running a sweep: scores, rungs, what is chosen, and going on after a kill."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs import MAKE, InlineEngine, end, write_run

from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.runs.engine import ERROR, Job
from ewc_paper.sweeps.search import choose, mean_points, mean_score, rungs, scores, search
from ewc_paper.sweeps.sweep import Plan, Sweep
from ewc_paper.sweeps.table import ranked

# Worked out by hand from the small runs.
EXPECTED: dict[str, float] = {
    "learning-curves": 100 * (0.61 + 0.981) / 2,
    "many-tasks": 100 * ((0.9 + 0.7) / 2 + 0.98) / 2,
    "strength": 100 * (0.85 + 0.9) / 2,
    "fisher-overlap": 90.0,
    "schematic": -(0.125 + 0.5) / 2,
    "recognition": 100 * (100 + 80 + 86 + 10) / 300,
}


@pytest.mark.parametrize("experiment", EXPECTED)
def test_the_score_of_a_run(experiment: str, tmp_path: Path) -> None:
    config = EXPERIMENTS[experiment].preset("quick")
    run = MAKE[experiment](tmp_path)
    assert config.score(run) == pytest.approx(EXPECTED[experiment])
    assert config.score_means


def test_the_score_of_noise_is_over_all_shapes_and_sizes(tmp_path: Path) -> None:
    levels = [level * (1 - scale) for level in (20, 60, 50) for scale in (0.1, 0.01)]
    expected = sum(levels) / len(levels) + 0.25  # the second seed's scores are half a point higher
    run = MAKE["perturbation"](tmp_path)
    assert EXPERIMENTS["perturbation"].preset("quick").score(run) == pytest.approx(expected)


@pytest.mark.parametrize("experiment", [*EXPECTED, "perturbation", "games"])
def test_a_run_without_measurements_has_no_score(experiment: str, tmp_path: Path) -> None:
    run = write_run(tmp_path, {"experiment": experiment}, {})
    assert EXPERIMENTS[experiment].preset("quick").score(run) is None
    assert EXPERIMENTS[experiment].preset("quick").points(run) == {}


def make_trial(sweep: Sweep, trial: int, seed: int, *rows: Any) -> None:
    run = sweep.directory(trial, seed)
    write_run(run.path, {"experiment": "many-tasks"}, {"ewc": ({"label": "ewc"}, list(rows))})


def test_a_trial_has_the_mean_over_its_seeds(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    plan = Plan(ManyTasks.preset("quick"), ("lr=0.1,0.2",), 2, 2, grid=True)
    make_trial(sweep, 0, 0, end(0, 0.1, validation=[0.5]))
    make_trial(sweep, 0, 1, end(0, 0.1, validation=[0.7]))
    assert scores(sweep, plan, 0) == [50.0, pytest.approx(70.0)]
    assert mean_score(sweep, plan, 0) == pytest.approx(60.0)
    assert mean_score(sweep, plan, 1) is None
    runs = [sweep.directory(0, seed) for seed in (0, 1)]
    assert mean_points(runs, [plan.base, plan.base]) == {"ewc-1": pytest.approx(60.0)}


def test_a_network_that_diverged_counts_as_nothing(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        {"experiment": "many-tasks"},
        {
            "a": ({"label": "ewc"}, [end(0, 0.9), end(1, 0.1, 0.1, diverged=True)]),
            "b": ({"label": "ewc"}, [end(0, 0.9), end(1, 0.8, 0.8)]),
        },
    )
    assert ManyTasks.preset("quick").score(run) == pytest.approx(40.0)


MakePlan = Callable[..., Plan]


class Killed(BaseException):
    """Ends a sweep as kill -9 would: nothing is saved after it."""


def run(sweep: Sweep, plan: Plan, engine: InlineEngine | None = None) -> InlineEngine:
    engine = engine or InlineEngine()
    sweep.write(plan)
    for _ in search(sweep, plan, engine=engine, checkpoint_seconds=0):
        pass
    return engine


def metrics(sweep: Sweep) -> dict[str, bytes]:
    return {
        str(file.relative_to(sweep.path)): file.read_bytes()
        for file in sorted(sweep.path.rglob("metrics.jsonl"))
        if "damaged" not in file.parts
    }


@pytest.mark.parametrize("halving", [None, 2.0])
def test_killed_anywhere_it_ends_the_same_and_repeats_no_finished_part(
    tmp_path: Path, make_plan: MakePlan, halving: float | None
) -> None:
    plan = make_plan(halving=halving, best_seeds=1, trials=3)
    whole = Sweep(tmp_path / "whole")
    pieces = len(run(whole, plan).pieces)
    expected = [(trial.number, trial.scores, trial.state) for trial in ranked(whole, plan)]
    for reports in range(1, pieces, max(1, pieces // 4)):
        sweep = Sweep(tmp_path / str(reports))
        sweep.write(plan)
        events = search(sweep, plan, engine=InlineEngine(), checkpoint_seconds=0)
        for _ in range(reports + 1):
            next(events)
        with pytest.raises(Killed):
            events.throw(Killed())
        resumed = Sweep(sweep.path)
        again = run_resumed(resumed)
        found = [(trial.number, trial.scores, trial.state) for trial in ranked(resumed, plan)]
        assert found == expected
        assert resumed.chosen == whole.chosen
        assert metrics(resumed) == metrics(whole)
        # A piece is lost with the kill; finished and paused parts report at most once more.
        networks = len(metrics(whole))
        assert len(again.pieces) <= pieces - reports + 1 + 3 * networks


def run_resumed(sweep: Sweep) -> InlineEngine:
    plan = sweep.read()
    return run(sweep, plan)


def test_a_finished_sweep_is_not_repeated(tmp_path: Path, make_plan: MakePlan) -> None:
    sweep, plan = Sweep(tmp_path), make_plan(trials=2)
    run(sweep, plan)
    before = metrics(sweep)
    again = run(sweep, plan)
    assert sorted(again.pieces) == sorted(set(again.pieces))  # one report of each: it is finished
    assert metrics(sweep) == before


def test_added_trials_and_seeds_leave_the_others_as_they_are(
    tmp_path: Path, make_plan: MakePlan
) -> None:
    sweep, plan = Sweep(tmp_path), make_plan(trials=2)
    run(sweep, plan)
    before = metrics(sweep)
    run(sweep, replace(plan, trials=3, seeds=2))
    after = metrics(sweep)
    assert len(after) == 3 * 2 * 2
    assert before.items() <= after.items()


def test_a_failing_trial_keeps_its_traceback_and_is_tried_again(
    tmp_path: Path, make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, plan = Sweep(tmp_path), make_plan(trials=3)
    learner = "ewc_paper.mnist.learner.PermutedMnistLearner._train_segment"

    def fails(job: Job) -> None:
        if "0001" in job.name and "ewc" in job.name:
            monkeypatch.setattr(learner, lambda self: 1 / 0)
        else:
            monkeypatch.undo()

    run(sweep, plan, InlineEngine(before=fails))
    monkeypatch.undo()
    states = {trial.number: trial.state for trial in ranked(sweep, plan)}
    assert states == {0: "done", 1: "failed", 2: "done"}
    error = next(sweep.path.rglob(ERROR))
    assert error.parent == sweep.directory(1, 0).part("ewc-0-seed0").path
    assert "ZeroDivisionError" in error.read_text()
    assert "Traceback" in error.read_text()
    assert choose(sweep, plan).keys() == {f"{m}-{n}" for m in ("ewc", "sgd") for n in range(1, 5)}
    assert 1 not in choose(sweep, plan).values()
    run(sweep, plan)
    assert all(trial.state == "done" for trial in ranked(sweep, plan))
    assert not list(sweep.path.rglob(ERROR))


def test_broken_runs_are_put_aside_and_run_again(tmp_path: Path, make_plan: MakePlan) -> None:
    sweep, plan = Sweep(tmp_path), make_plan(trials=3)
    run(sweep, plan)
    before = metrics(sweep)
    first, second = (sweep.directory(trial, 0) for trial in (0, 1))
    for file in first.part("ewc-0-seed0").path.glob("*.safetensors"):
        file.write_bytes(b"garbage")
    (first.part("sgd-0-seed0").path / "metrics.jsonl").write_text("")
    (second.path / "config.json").write_text("{")
    (second.part("sgd-0-seed0").path / "config.json").write_text("{")
    run(sweep, plan)
    assert metrics(sweep) == before
    assert all(trial.state == "done" for trial in ranked(sweep, plan))
    assert second.config()["experiment"] == "many-tasks"
    assert second.part("sgd-0-seed0").config()["label"] == "sgd"
    damaged = first.part("ewc-0-seed0").path / "damaged" / "checkpoint.safetensors"
    assert damaged.read_bytes() == b"garbage"


def test_halving_stops_the_worst_and_spends_less(tmp_path: Path, make_plan: MakePlan) -> None:
    assert rungs(2.0) == [0.25, 0.5]
    plan = make_plan(halving=2.0)
    sweep, whole = Sweep(tmp_path / "halved"), Sweep(tmp_path / "whole")
    some, every = run(sweep, plan), run(whole, replace(plan, halving=None))
    assert len(some.pieces) < 0.75 * len(every.pieces)
    decisions = json.loads((sweep.path / "sweep.json").read_text())["goes_on"]
    assert sum(decisions["0.25"].values()) == 2
    assert sum(decisions["0.5"].values()) == 1
    states = [trial.state for trial in ranked(sweep, plan)]
    assert states == ["done", "stopped early", "stopped early", "stopped early"]
    (kept,) = (int(trial) for trial, on in decisions["0.5"].items() if on)
    assert mean_score(sweep, plan, kept) == mean_score(whole, plan, kept)


def test_at_the_first_rung_the_best_go_on(tmp_path: Path, make_plan: MakePlan) -> None:
    """What was measured by then is the accuracy on the first of four tasks."""
    plan = make_plan(halving=2.0)
    whole = Sweep(tmp_path / "whole")
    run(whole, replace(plan, halving=None))
    first_task = {
        trial: sum(sum(part.rows()[0]["validation"]) for part in whole.directory(trial, 0).parts())
        for trial in range(plan.trials)
    }
    sweep = Sweep(tmp_path / "halved")
    run(sweep, plan)
    best = sorted(first_task, key=lambda trial: (-first_task[trial], trial))[:2]
    assert {int(t) for t, on in sweep.goes_on["0.25"].items() if on} == set(best)
