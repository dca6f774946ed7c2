"""What a sweep goes over, and its plan on disk."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from support.runs import change_record

from ewc_paper.errors import Damaged, RunError
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.experiments.schematic import Schematic
from ewc_paper.options import check_options
from ewc_paper.sweeps.sweep import (
    MAX_SEEDS,
    Listed,
    Plan,
    Range,
    Sweep,
    extended,
    parse_spec,
    parse_specs,
)


def draws(text: str, count: int = 2000) -> np.ndarray:
    random, spec = np.random.default_rng(0), parse_spec(text, ManyTasks)
    return np.array([spec.draw(random) for _ in range(count)])


def test_a_list_gives_its_values() -> None:
    spec = parse_spec("lr=0.01,0.1,1", ManyTasks)
    assert isinstance(spec, Listed)
    assert spec.values == (0.01, 0.1, 1.0)
    assert set(draws("width=8,16")) == {8, 16}


def test_values_of_an_option_with_several_are_joined() -> None:
    spec = parse_spec("methods=ewc+sgd,ewc", ManyTasks)
    assert isinstance(spec, Listed)
    assert spec.values == (("ewc", "sgd"), ("ewc",))


def test_a_range_is_drawn_evenly() -> None:
    drawn = draws("lr=0.2..0.6")
    assert 0.2 <= drawn.min() < 0.21
    assert 0.59 < drawn.max() <= 0.6
    assert np.mean(drawn) == pytest.approx(0.4, abs=0.01)


def test_whole_numbers_are_drawn_with_both_ends() -> None:
    drawn = draws("width=3..5")
    assert drawn.dtype == np.int64
    assert [np.mean(drawn == width) for width in (3, 4, 5)] == pytest.approx([1 / 3] * 3, abs=0.05)


def test_a_log_scale_is_drawn_evenly_on_it() -> None:
    drawn = draws("lr=log:1e-5..1e-1")
    assert drawn.min() >= 1e-5
    assert drawn.max() <= 1e-1
    in_decades = np.histogram(np.log10(drawn), bins=[-5, -4, -3, -2, -1])[0] / len(drawn)
    assert in_decades == pytest.approx([0.25] * 4, abs=0.04)
    widths = draws("width=log:1..1000")
    assert widths.dtype == np.int64
    assert np.mean(widths <= 31) == pytest.approx(0.5, abs=0.04)


def test_every_value_drawn_fits_its_option() -> None:
    for text in ("lr=1e-12..1e3", "width=1..3", "momentum=0..0.5", "floor=0,0.02"):
        spec = parse_spec(text, ManyTasks)
        for seed in range(50):
            check_options(ManyTasks, {spec.field: spec.draw(np.random.default_rng(seed))})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr", "--over must be FIELD=SPEC, got lr"),
        ("lr=", "--over must be FIELD=SPEC"),
        ("rate=1,2", "there is no option rate.* there are .*lr"),
        ("seed=1,2", "cannot go over seed: --seeds N repeats"),
        ("seeds=1,2", "cannot go over seeds"),
        ("lr=a,b", "--over lr: expected a number, got a; write a,b,c for a list"),
        ("lr=1..x", "expected a number, got x"),
        ("lr=0.1..0.1", "a range must rise, got 0.1 to 0.1"),
        ("lr=1..0.1", "a range must rise"),
        ("lr=0..nan", "a range must rise"),
        ("lr=0.1..inf", "--lr must be at most 1000"),
        ("strength=log:0..10", "a log scale begins above 0, got 0"),
        ("width=1.5..3", "expected a whole number, got 1.5"),
        ("width=0..30", "--width must be at least 1, got 0"),
        ("lr=0.1,0.1", "values must differ"),
        ("lr=0.1,", "expected a number, got an empty string"),
        ("methods=ewc..sgd", "only numbers have ranges"),
        ("methods=ewc+magic", "--methods must be one of .* got magic"),
        ("data=a..b", "only numbers have ranges"),
        ("log:lr=1..2", "there is no option log:lr"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(RunError, match=said) as error:
        parse_spec(text, ManyTasks)
    assert "\n" not in str(error.value)


def test_a_field_is_gone_over_once() -> None:
    with pytest.raises(RunError, match="--over names lr twice"):
        parse_specs(["lr=1,2", "lr=3,4"], ManyTasks)


def test_any_option_but_the_seeds_can_be_gone_over() -> None:
    numbers = [one for one in fields(ManyTasks) if type(one.default) in (int, float)]
    for one in numbers:
        if one.name not in ("seed", "seeds"):
            low, high = one.metadata["low"], one.metadata["low"] + 1
            if one.metadata["high"] is None or high <= one.metadata["high"]:
                spec = parse_spec(f"{one.name}={low}..{high}", ManyTasks)
                assert isinstance(spec, Range)
                assert spec.whole == isinstance(one.default, int)


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
    change_record(file, **change)
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
