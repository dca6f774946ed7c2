"""An option that an experiment offers changes what it runs, and what it runs reads it."""

import sys
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny import OPTIONS, write_data

from ewc.recognition import RecognizerConfig
from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.games.config import AgentConfig
from ewc_paper.mnist.config import TrainingConfig
from ewc_paper.options import kind_of, limits
from ewc_paper.runs.engine import Part

# What other options have to be for an option to matter.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("many-tasks", "l2_strength"): {"methods": ("l2",)},
}


def every_option() -> list[Any]:
    return [
        pytest.param(name, one, id=f"{name}-{one.name}")
        for name, experiment in EXPERIMENTS.items()
        for one in fields(experiment)
    ]


def another(one: Field[Any], value: Any) -> Any:
    """A value for the option that is not the present one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return value[:-1] if len(value) > 1 else value[1:] * 2
    if one.metadata.get("choices"):
        return next(choice for choice in one.metadata["choices"] if choice != value)
    if kind_of(one) is str:
        return "minatar/freeway"
    low, high = limits(one)
    tried = (low + 1, high) if value is None else (value + 1, value / 2, low + 1)
    return next(kind_of(one)(number) for number in tried if low <= number <= high)


@pytest.mark.parametrize(("experiment", "one"), every_option())
def test_every_option_changes_what_is_run(experiment: str, one: Field[Any]) -> None:
    needed = NEEDED.get((experiment, one.name), {})
    config = replace(EXPERIMENTS[experiment].preset("laptop"), **needed)
    changed = replace(config, **{one.name: another(one, getattr(config, one.name))})
    assert described(changed.parts()) != described(config.parts())


def described(parts: list[Part]) -> list[tuple[str, dict[str, Any]]]:
    return [(part.name, part.config) for part in parts]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The settings of learners that anything but their own checks reads."""
    names: set[str] = set()
    checks = RecognizerConfig.__module__

    def noting(self: Any, name: str) -> Any:
        if sys._getframe(1).f_globals["__name__"] != checks:
            names.add(name)
        return object.__getattribute__(self, name)

    for config in (AgentConfig, TrainingConfig):
        monkeypatch.setattr(config, "__getattribute__", noting)
    return names


def run_all(parts: list[Part], directory: Path) -> None:
    for part in parts:
        learner = part.make(part.config)
        if hasattr(learner, "keep_in"):
            (directory / part.name).mkdir()
            learner.keep_in(directory / part.name)
        for _ in learner.run():
            pass


@pytest.mark.parametrize(
    ("experiment", "changes"),
    [
        ("learning-curves", {}),
        ("many-tasks", {"validation_samples": 40}),
        ("fisher-overlap", {"squares": (8,)}),
        ("strength", {"strengths": (1.0,)}),
    ],
)
def test_every_setting_of_a_network_on_mnist_is_read(
    experiment: str, changes: dict[str, Any], read: set[str], tmp_path: Path
) -> None:
    tiny = {**OPTIONS, "data": str(write_data(tmp_path)), **changes}
    parts = EXPERIMENTS[experiment].preset("quick", **tiny).parts()
    run_all(parts, tmp_path)
    assert {name for part in parts for name in part.config["recipe"]} <= read


TINY: dict[str, Any] = {
    "environments": 2,
    "max_episode_steps": 12,
    "batch_size": 4,
    "target_every": 16,
    "replay_capacity": 64,
    "min_history": 8,
    "epsilon_start": 8,
    "epsilon_end": 16,
    "fisher_batches": 2,
    "segment_steps": 64,
    "test_episodes": 1,
    "table_episodes": 1,
    "report_every": 16,
}


@pytest.mark.parametrize(
    ("experiment", "changes"),
    [
        ("games", {"min_visit": 0, "visits": 1, "recognizer": "forget-me-not"}),
        ("perturbation", {"scales": (0.1,), "shapes": ("uniform",), "noise_episodes": 1}),
    ],
)
def test_every_setting_of_an_agent_is_read(
    experiment: str, changes: dict[str, Any], read: set[str], tmp_path: Path
) -> None:
    for optimizer in ("adam", "rmsprop"):
        (tmp_path / optimizer).mkdir()
        chosen = EXPERIMENTS[experiment].preset("quick", optimizer=optimizer, **TINY, **changes)
        run_all(chosen.parts(), tmp_path / optimizer)
        assert chosen.parts()[0].config["settings"].keys() <= read | {"max_lr"}
    assert "max_lr" in read
