"""Every experiment's options: presets fit, each has help, and what does not fit is refused."""

import json
from dataclasses import fields
from typing import Any

import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.experiments.experiment import Config
from ewc_paper.experiments.many_tasks.run import ManyTasks


@pytest.mark.parametrize(
    ("experiment", "preset"),
    [(experiment, preset) for experiment in EXPERIMENTS.values() for preset in experiment.presets],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_presets_fit_and_name_their_parts_apart(experiment: type[Config], preset: str) -> None:
    assert {"quick", "laptop", "paper"} <= experiment.presets.keys()
    parts = experiment.preset(preset).parts()
    assert len({part.name for part in parts}) == len(parts) > 0
    assert all(one.metadata["help"] for one in fields(experiment))


@pytest.mark.parametrize(
    ("experiment", "option", "value", "said"),
    [
        ("learning-curves", "square", 29, "--square must be at most 28, got 29"),
        ("learning-curves", "tasks", 0, "--tasks must be at least 1, got 0"),
        ("learning-curves", "strength", -1.0, "--strength must be at least 0, got -1.0"),
        ("learning-curves", "strength", float("nan"), "--strength must be at least 0, got nan"),
        ("learning-curves", "methods", ("ewc", "magic"), "--methods must be one of .*, got magic"),
        ("learning-curves", "methods", (), "--methods needs at least one value"),
        ("learning-curves", "data", "/nowhere", "--data must be a directory"),
        ("fisher-overlap", "squares", (8, 30), "--squares must be at most 28, got 30"),
        ("strength", "strengths", (1.0, -2.0), "--strengths must be at least 0, got -2.0"),
        ("strength", "strengths", (10.0, 10.0000001), "--strengths must all differ in their first"),
        (
            "learning-curves",
            "methods",
            ("sgd", "sgd"),
            "--methods must all differ, got sgd and sgd",
        ),
        ("learning-curves", "methods", ("dropout",), "need --validation-samples of at least 1"),
        ("learning-curves", "width", 20_000, "has 4.2e.08 weights, more than 1e.08"),
        ("many-tasks", "validation_samples", 0, "need --validation-samples of at least 1"),
        ("many-tasks", "seeds", 10**9, "more than 10,000 networks"),
        ("schematic", "samples", 1_000_000, "take 26.2 GB: choose a smaller --grid or --samples"),
        ("many-tasks", "lr_range", (1e-3, 1e-5), "--lr-range must be two rising numbers"),
    ],
)
def test_what_does_not_fit_is_refused(experiment: str, option: str, value: Any, said: str) -> None:
    with pytest.raises(RunError, match=said):
        EXPERIMENTS[experiment].preset("quick", **{option: value}).parts()


def test_the_search_draws_the_same_combinations_within_their_ranges() -> None:
    config = ManyTasks.preset("paper", search=20, seeds=2, strength_range=(1.0, 10.0))
    parts = config.parts()
    assert len(parts) == 3 * 20 * 2
    recipes = [part.config["recipe"] for part in parts]
    assert all(1e-5 <= recipe["lr"] <= 1e-3 for recipe in recipes)
    assert all(400 <= recipe["width"] <= 2000 for recipe in recipes)
    assert all(1 <= r["strength"] <= 10 for r in recipes if r["method"] == "ewc")
    assert len({recipe["lr"] for recipe in recipes}) == 20
    assert recipes == [part.config["recipe"] for part in config.parts()]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_options_come_back_from_their_json(experiment: str) -> None:
    config = EXPERIMENTS[experiment].preset("laptop")
    stored = json.loads(json.dumps({**config.to_dict(), "versions": {"ewc": "0"}}))
    assert EXPERIMENTS[experiment].from_dict(stored) == config
    with pytest.raises(RunError, match="--seed must be of type int, got 'x'"):
        EXPERIMENTS[experiment].from_dict({**stored, "seed": "x"})


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_summary_is_that_of_the_config(experiment: str) -> None:
    config = EXPERIMENTS[experiment]
    assert config.name == experiment
    assert (config.__doc__ or "").strip() == SUMMARIES[experiment]
