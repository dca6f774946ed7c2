"""Every experiment's options: presets fit, each has help, and what does not fit is refused."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.runs.directory import RunDirectory

STORED = sorted(
    config.parent for config in Path(__file__).parents[3].glob("docs/results/*/config.json")
)


@pytest.mark.parametrize(
    ("experiment", "preset"),
    [(experiment, preset) for experiment in EXPERIMENTS.values() for preset in experiment.presets],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_presets_fit_and_name_their_parts_apart(experiment: type[Experiment], preset: str) -> None:
    assert {"quick", "laptop", "paper"} <= experiment.presets.keys()
    parts = experiment.preset(preset).parts()
    assert len({part.name for part in parts}) == len(parts) > 0
    assert all(json.dumps(part.config, allow_nan=False) for part in parts)
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
    ],
)
def test_what_does_not_fit_is_refused(experiment: str, option: str, value: Any, said: str) -> None:
    with pytest.raises(RunError, match=said):
        EXPERIMENTS[experiment].preset("quick", **{option: value}).parts()


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)
def test_a_stored_result_is_made_of_the_parts_that_were_stored(stored: Path) -> None:
    """Options may have come and gone since; those that are there still mean the same."""
    config = RunDirectory(stored).config() | {"agents": None}  # whose directory is not stored
    made = {part.name: part for part in EXPERIMENTS[config["experiment"]].from_dict(config).parts()}
    parts = RunDirectory(stored).parts()
    assert made.keys() == {part.name for part in parts}
    for part in parts:
        assert_agrees(part.config() | {"agents": None}, made[part.name].config)


def assert_agrees(stored: dict[str, Any], made: dict[str, Any]) -> None:
    made = json.loads(json.dumps(made))
    for key in stored.keys() & made.keys():
        if isinstance(made[key], dict):
            assert_agrees(stored[key], made[key])
        else:
            assert made[key] == stored[key], key


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


def test_options_to_look_at_are_restored_without_reading_other_files(tmp_path: Path) -> None:
    stored = EXPERIMENTS["recognition"].preset("laptop").to_dict() | {"agents": str(tmp_path / "x")}
    assert EXPERIMENTS["recognition"].restored(stored).agents == stored["agents"]
    with pytest.raises(RunError):
        EXPERIMENTS["recognition"].from_dict(stored)
    with pytest.raises(RunError, match="--seed must be of type int"):
        EXPERIMENTS["recognition"].restored({**stored, "seed": "x"})
