"""Options of how a run is run, and going on with a run that was stopped."""

import argparse
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.runs import change_record

from ewc_paper.cli import main
from ewc_paper.cli.parser import Running
from ewc_paper.cli.run import make_engine, other_options, running_options, try_out
from ewc_paper.errors import RunError
from ewc_paper.experiments.schematic import Schematic
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import LocalEngine, Part
from ewc_paper.runs.ray_engine import RayEngine


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"address": "auto"}, "--address and --gpus are for a cluster: add --engine ray"),
        ({"gpus": 0.5}, "--address and --gpus are for a cluster"),
        ({"engine": "ray", "workers": 3}, "--workers is for this machine"),
        (
            {"engine": "ray", "address": ""},
            "--address must be HOST:PORT.* an empty string|--address must not be empty",
        ),
        (
            {"engine": "ray", "address": "head"},
            "--address must be HOST:PORT, with a port from 1 to 65535, or auto; got head",
        ),
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


TINY = ["--samples", "50", "--gradient-steps", "10", "--grid", "5"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    assert main(["run", "schematic", *TINY, "--out", str(path)]) == 0
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A run that was stopped after its first checkpoint, so to say: its part has yet to begin."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "parts")
    return tmp_path / "run"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_resume_alone_takes_the_options_of_the_run(run: Path, finished: Path) -> None:
    assert main(["run", "schematic", "--out", str(run), "--resume"]) == 0
    assert RunDirectory(run).config() == RunDirectory(finished).config()
    metrics = Path("parts") / "schematic" / "metrics.jsonl"
    assert (run / metrics).read_text() == (finished / metrics).read_text()


def test_options_as_they_were_are_taken(run: Path) -> None:
    assert main(["run", "schematic", *TINY, "--out", str(run), "--resume"]) == 0


def test_a_resume_with_other_options_names_both_values(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ["--grid", "7", "--samples", "50", "--lr", "0.5"]
    said = refused(["schematic", "--out", str(run), "--resume", *others], capsys)
    assert f"{run} was started with --lr 0.1, not 0.5; --grid 5, not 7: resume" in said
    said = refused(["schematic", "--out", str(run), "--resume", "--preset", "quick"], capsys)
    assert "--samples 50, not 2000; --gradient-steps 10, not 1000; --grid 5, not 81" in said
    assert not (run / "parts").exists()


def test_a_run_killed_in_the_middle_of_its_start_is_started(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.new").write_text("{")
    assert main(["run", "schematic", *TINY, "--out", str(run), "--resume"]) == 0


def test_a_mistyped_directory_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "rnu"
    said = refused(["schematic", "--out", str(nowhere), "--resume"], capsys)
    assert f"{nowhere} holds no run to resume" in said
    assert not nowhere.exists()


def test_a_foreign_directory_is_left_alone(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    assert "is not empty and holds no run: choose another --out" in refused(
        ["schematic", "--out", str(mine), "--resume"], capsys
    )
    assert [file.name for file in mine.iterdir()] == ["thesis.txt"]
    said = refused(["strength", "--out", str(run), "--resume"], capsys)
    assert f"{run} holds a run of schematic, not of strength" in said
    assert not (run / "parts").exists()


def test_the_default_directory_is_started_or_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `make demo` does it."""
    monkeypatch.chdir(tmp_path)
    command = ["run", "schematic", "--preset", "quick", "--resume", *TINY]
    assert main(command) == 0
    assert main(command) == 0
    stray = tmp_path / "runs" / "schematic" / "quick-3"
    stray.mkdir()
    (stray / "config.new").write_text("{")  # killed in the middle of its start
    assert main([*command, "--seed", "3"]) == 0
    stray = tmp_path / "runs" / "schematic" / "quick-4"
    stray.mkdir()
    (stray / "thesis.txt").write_text("all of it")
    assert "is not empty and holds no run" in refused([*command[1:], "--seed", "4"], capsys)
    assert [file.name for file in stray.iterdir()] == ["thesis.txt"]


def test_a_config_that_does_not_fit_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_record(run / "config.json", grid=10**6)
    said = refused(["schematic", "--out", str(run), "--resume"], capsys)
    assert f"{run}/config.json: --grid must be at most 1000, got 1000000" in said


@pytest.mark.parametrize("out", ["", " "])
def test_an_empty_directory_name_is_refused(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--out must name a directory" in refused(["schematic", "--out", out], capsys)
