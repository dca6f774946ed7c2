"""The command on the page makes a run with the same options."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from ewc_paper.cli import build_parser
from ewc_paper.errors import RunError
from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.page.command_line import reproducing_command
from ewc_paper.parser import given_options
from ewc_paper.runs.directory import RunDirectory

STORED = sorted(Path(__file__).parents[3].glob("docs/results/*/config.json"))


def options_of(command: str) -> Any:
    """What `ewc` would run, if it finds the files that the options name."""
    _, *arguments = shlex.split(command)
    given = build_parser(arguments).parse_args(arguments)
    chosen = given.experiment.presets[given.preset]
    return given.experiment(**chosen | given_options(given, given.experiment))


@pytest.mark.parametrize("config", STORED, ids=lambda config: config.parent.name)
def test_the_command_of_a_stored_run_has_its_options(config: Path) -> None:
    stored = RunDirectory(config.parent).config()
    experiment = EXPERIMENTS[stored["experiment"]]
    assert options_of(reproducing_command(stored)) == experiment.restored(stored)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_preset_is_recognized(name: str) -> None:
    for preset in EXPERIMENTS[name].presets:
        config = EXPERIMENTS[name].preset(preset)
        assert options_of(reproducing_command(config.to_dict())) == config


def test_changes_are_named_and_quoted() -> None:
    config = EXPERIMENTS["games"].preset("quick", double=False, seed=7)
    assert reproducing_command(config.to_dict()) == (
        "ewc run games --preset quick --no-double --seed 7"
    )
    odd = EXPERIMENTS["learning-curves"].preset("quick").to_dict() | {"data": "a b; rm -rf $HOME"}
    assert reproducing_command(odd).endswith("--data 'a b; rm -rf $HOME'")


def test_options_of_another_version_are_refused() -> None:
    with pytest.raises(RunError, match="--tasks must be at least 1"):
        reproducing_command({"experiment": "learning-curves", "tasks": 0})
