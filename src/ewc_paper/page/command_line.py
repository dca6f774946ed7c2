"""The command that reproduces a run or a sweep, from what it stores alone."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.options import flag
from ewc_paper.sweeps.sweep import Plan


def reproducing_command(stored: Mapping[str, Any]) -> str:
    """Return `ewc run NAME` with the preset that is nearest, and the options that differ from it.

    Raises RunError if the config does not fit the experiment.
    """
    config = EXPERIMENTS[stored["experiment"]].restored(stored)
    return shlex.join(["ewc", "run", config.name, *_options(config)])


def sweeping_command(plan: Plan) -> str:
    """Return `ewc sweep NAME` with the options that reproduce a sweep."""
    words = ["ewc", "sweep", plan.base.name, *_options(plan.base), "--over", *plan.over]
    numbers: dict[str, float | None] = {
        "trials": None if plan.grid else plan.trials,
        "seeds": plan.seeds,
        "halving": plan.halving,
        "best_seeds": plan.best_seeds,
    }
    for name, number in numbers.items():
        if number is not None:
            words += [flag(name), f"{number:g}"]
    return shlex.join(words)


def _options(config: Experiment) -> list[str]:
    """Return the nearest preset and the options that differ from it."""
    options = [
        ["--preset", preset, *_changes(config, preset)]
        for preset in config.presets
        if not _cannot_be_given(config, preset)
    ]
    return min(options, key=len, default=[])


def _changes(config: Experiment, preset: str) -> Iterator[str]:
    """Yield the options that turn a preset into the config."""
    for name, value in _differing(config, preset).items():
        if isinstance(value, bool):
            yield flag(name) if value else flag(name).replace("--", "--no-", 1)
            continue
        yield flag(name)
        for one in value if isinstance(value, tuple) else (value,):
            yield str(one)


def _differing(config: Experiment, preset: str) -> dict[str, Any]:
    """Return the options of a config that differ from those of a preset."""
    chosen = type(config)(**config.presets[preset])
    names = [one.name for one in fields(config)]
    return {
        name: getattr(config, name)
        for name in names
        if getattr(config, name) != getattr(chosen, name)
    }


def _cannot_be_given(config: Experiment, preset: str) -> bool:
    """Whether the preset sets an option that the config leaves out: there is no way to say so."""
    return any(value is None for value in _differing(config, preset).values())
