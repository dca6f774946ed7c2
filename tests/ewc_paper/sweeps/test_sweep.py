"""A sweep on disk: trials stay what they are when others are added, and files are checked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ewc_paper.errors import Damaged, RunError
from ewc_paper.experiments.many_tasks.run import ManyTasks
from ewc_paper.experiments.schematic.run import Schematic
from ewc_paper.sweeps.sweep import MAX_SEEDS, Plan, Sweep, extended

OVER = ("lr=log:1e-3..1", "strength=0..10")
PLAN = Plan(Schematic(grid=5, samples=50, gradient_steps=10), OVER, 3, 2, grid=False)


def test_trials_and_seeds_can_be_added_without_changing_those_there_are(tmp_path: Path) -> None:
    more = extended(PLAN, trials=9, seeds=3, best_seeds=None)
    runs = {run.directory.path: run.config for run in Sweep(tmp_path).runs(PLAN)}
    added = {run.directory.path: run.config for run in Sweep(tmp_path).runs(more)}
    assert len(runs) == 3 * 2
    assert len(added) == 9 * 3
    assert runs.items() <= added.items()
    assert len({config.lr for config in added.values() if isinstance(config, Schematic)}) == 9


def test_a_trial_does_not_depend_on_the_order_of_its_fields() -> None:
    turned = replace(PLAN, over=OVER[::-1])
    assert turned.values(2) == PLAN.values(2)
    assert replace(PLAN, base=Schematic(seed=1)).values(2) != PLAN.values(2)


def test_a_grid_has_every_combination_once() -> None:
    plan = Plan(Schematic(), ("lr=0.1,0.2", "strength=1,2,3"), 6, 1, grid=True)
    found = {tuple(plan.values(trial).values()) for trial in range(6)}
    assert found == {(lr, strength) for lr in (0.1, 0.2) for strength in (1.0, 2.0, 3.0)}


def test_the_seeds_of_an_experiment_are_those_of_the_sweep() -> None:
    plan = Plan(ManyTasks.preset("laptop", seed=7), ("lr=0.1,0.2",), 2, 2, grid=True)
    config = plan.config(0, 8)
    assert isinstance(config, ManyTasks)
    assert (config.seed, config.seeds) == (8, 1)
    assert list(plan.search_seeds) == [7, 8]


def test_reporting_seeds_are_never_among_those_of_the_search() -> None:
    plan = replace(PLAN, seeds=MAX_SEEDS, best_seeds=5)
    assert not set(plan.search_seeds) & set(plan.reporting_seeds)


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "new")
    sweep.goes_on, sweep.chosen = {"0.25": {"0": True}}, {"all": 2}
    sweep.write(replace(PLAN, halving=2.0))
    again = Sweep(tmp_path / "new")
    assert again.read() == replace(PLAN, halving=2.0)
    assert (again.goes_on, again.chosen) == (sweep.goes_on, sweep.chosen)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trials": 0}, "trials: expected a whole number from 1"),
        ({"experiment": "magic"}, "experiment: expected one of"),
        ({"goes_on": {"0.5": {"0": 3}}}, "expected true or false"),
        ({"chosen": {"all": -1}}, "expected a whole number"),
        ({"over": []}, "over: expected 1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    Sweep(tmp_path).write(PLAN)
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(Damaged, match=f"sweep.json is damaged: .*{said}"):
        Sweep(tmp_path).read()


def test_a_directory_without_a_sweep_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a sweep: it has no "):
        Sweep(tmp_path).read()


def test_a_sweep_can_only_grow() -> None:
    with pytest.raises(RunError, match="--trials can only grow: the sweep has 3, got 2"):
        extended(PLAN, trials=2, seeds=None, best_seeds=None)
    with pytest.raises(RunError, match="a grid of 3 combinations"):
        extended(replace(PLAN, grid=True), trials=4, seeds=None, best_seeds=None)


def test_options_that_do_not_fit_together_name_the_trial() -> None:
    plan = Plan(ManyTasks.preset("quick"), ("width=8,60000",), 2, 1, grid=True)
    with pytest.raises(RunError, match=r"trial 1 \(width 60000\): a network of 2 layers"):
        plan.config(1, 0)


def test_best_runs_are_run_alone_with_new_seeds(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    plan = Plan(ManyTasks.preset("quick"), ("width=8,16",), 2, 1, grid=True, best_seeds=2)
    sweep.chosen = {"ewc-1": 1, "ewc-2": 1, "dropout-1": 0}
    best = sweep.best_runs(plan)
    names = {point: [run.directory.name for run in runs] for point, runs in best.items()}
    assert names["ewc-1"] == names["ewc-2"] == ["0001-ewc-seed1000", "0001-ewc-seed1001"]
    config = best["ewc-1"][0].config
    assert isinstance(config, ManyTasks)
    assert (config.methods, config.width, config.seed) == (("ewc",), 16, 1000)
