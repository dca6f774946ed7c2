"""Where parts are run: the options of one engine are not taken for those of the other."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from ewc_paper.commands.running import make_engine, other_options, running_options, try_out
from ewc_paper.errors import RunError
from ewc_paper.experiments.schematic.run import Schematic
from ewc_paper.parser import Running
from ewc_paper.runs.engine import Part
from ewc_paper.runs.local import LocalEngine
from ewc_paper.runs.ray_engine import RayEngine


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"address": "auto"}, "--address and --gpus are for a cluster: add --engine ray"),
        ({"gpus": 0.5}, "--address and --gpus are for a cluster"),
        ({"engine": "ray", "workers": 3}, "--workers is for this machine"),
        ({"engine": "ray", "address": ""}, "--address must be HOST:PORT or auto, got ''"),
        ({"engine": "ray", "address": "head"}, "--address must be HOST:PORT or auto, got 'head'"),
        ({"engine": "slurm"}, "--engine must be one of local, ray, got slurm"),
        ({"engine": "ray", "gpus": -1.0}, "--gpus must be at least 0"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        running_options(argparse.Namespace(**given))


def test_the_engine_is_the_one_asked_for() -> None:
    local = make_engine(running_options(argparse.Namespace(workers=3)))
    assert isinstance(local, LocalEngine)
    assert local.workers == 3
    address = "10.0.0.1:6379"
    on_ray = make_engine(running_options(argparse.Namespace(engine="ray", address=address)))
    assert isinstance(on_ray, RayEngine)
    assert on_ray.address == address


def test_other_options_are_named_with_both_values() -> None:
    config = Schematic(lr=0.5, grid=9)
    assert other_options(config, None, {"lr": 0.5}) == []
    assert other_options(config, None, {"lr": 0.1, "grid": 9}) == ["--lr 0.5, not 0.1"]
    assert other_options(config, "quick", {"lr": 0.5}) == ["--grid 9, not 81"]
    assert other_options(config, "quick", {"lr": 0.5}, but=("grid",)) == []


def test_what_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    def make(config: object) -> Any:
        raise FileNotFoundError("no data\nat all")

    with pytest.raises(RunError, match=r"^no data$"):
        try_out(tmp_path, [Part("a", {}, make)], Running())
