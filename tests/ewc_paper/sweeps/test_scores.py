"""Scores: one number per run, the same that its table shows, and means over seeds."""

from pathlib import Path
from typing import Any

import pytest
from support.small_runs import MAKE, end, write_run

from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.experiments.many_tasks.run import ManyTasks
from ewc_paper.sweeps.scores import mean_points, mean_score, scores
from ewc_paper.sweeps.sweep import Plan, Sweep

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
