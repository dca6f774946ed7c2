"""The command line, from end to end on a tiny data set."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import FLAGS, write_data

from ewc.cli import main
from ewc.runs.directory import RunDirectory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    names = ["schematic", "learning-curves", "many-tasks", "fisher-overlap", "strength"]
    names += ["games", "perturbation", "recognition"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "many-tasks", "--help"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    out = capsys.readouterr().out
    assert re.search(r"ewc \d+\.\d+\.\d+|COMMAND|quick: 1, laptop: 2, paper: 100", out)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--square", "29"], "--square must be at most 28, got 29"),
        (["--tasks", "0"], "--tasks must be at least 1, got 0"),
        (["--strength", "-1"], "--strength must be at least 0, got -1.0"),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["--validation-samples", "60000"], "validation_samples must be 0 to 59999, got 60000"),
        (["--data", "nowhere"], "--data must be a directory with IDX files, got nowhere"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "learning-curves", "--out", str(tmp_path / "run"), *options]) == 1
    assert capsys.readouterr().err == f"ewc: {said}\n"
    assert not (tmp_path / "run").exists()


def test_a_run_shows_its_table_and_is_never_overwritten(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run = [
        "run",
        "learning-curves",
        "--data",
        str(data),
        "--out",
        str(out),
        *FLAGS,
        "--tensorboard",
    ]
    assert main(run) == 0
    shown = capsys.readouterr().out
    assert "method" in shown
    assert "figure: " in shown
    assert (out / "figures" / "learning-curves.png").exists()
    assert list((out / "tensorboard").iterdir())
    metrics = {part.name: part.rows() for part in RunDirectory(out).parts()}
    assert metrics.keys() == {"ewc", "l2", "sgd"}

    assert main(run) == 1
    assert "exists: go on with --resume" in capsys.readouterr().err
    assert main([*run, "--resume", "--lr", "0.5"]) == 1
    assert "started with lr = 0.01, not 0.5" in capsys.readouterr().err
    assert main([*run, "--resume"]) == 0
    assert {part.name: part.rows() for part in RunDirectory(out).parts()} == metrics

    (out / "figures" / "learning-curves.png").unlink()
    assert main(["figure", str(out)]) == 0
    assert (out / "figures" / "learning-curves.png").exists()
    assert main(["figure", str(tmp_path)]) == 1
    assert "is not a run directory" in capsys.readouterr().err


def test_data_that_is_damaged_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (write_data(tmp_path / "data") / "t10k-labels-idx1-ubyte").unlink()
    run = [
        "run",
        "learning-curves",
        "--data",
        str(tmp_path / "data"),
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*run, *FLAGS]) == 1
    assert "expected t10k-labels-idx1-ubyte" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ctrl_c_checkpoints_and_says_how_to_go_on(tmp_path: Path, data: Path) -> None:
    run = [
        "run",
        "learning-curves",
        "--data",
        str(data),
        *FLAGS,
        "--epochs",
        "2000",
        "--methods",
        "ewc",
    ]
    command = [sys.executable, "-m", "ewc.cli", *run, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with the same command and --resume" in rest.replace("\n", " ")
    part = RunDirectory(tmp_path).part("ewc")
    rows = part.rows()
    state = part.load()
    assert state is not None
    assert state["gradient_steps"] == rows[-1]["gradient_steps"]
    assert not part.finished()


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("file", "{out} is not a directory: choose another --out"),
        ("file/run", "cannot use {out}"),
        ("dangling", "{out} is not a directory: choose another --out"),
        ("n" * 300, "cannot use {out}"),
        ("/proc/nowhere/run", "cannot use /proc/nowhere"),
        ("/dev/null/run", "cannot use /dev/null/run"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_line(
    out: str, said: str, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    place = str(tmp_path / out)
    run = ["run", "learning-curves", "--data", str(data), "--out", place, *FLAGS]
    assert main(run) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"ewc: {said.format(out=place)}")
    assert complaint.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["dangling", "file"]


def test_texts_of_a_run_directory_are_not_obeyed_by_the_terminal(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b]0;owned\x07[red]\n" + "x" * 10_000
    (tmp_path / "config.json").write_text(json.dumps({"experiment": hostile}))
    run = ["run", "learning-curves", "--data", str(data), "--out", str(tmp_path), "--resume"]
    for command in (["figure", str(tmp_path)], [*run, *FLAGS]):
        assert main(command) == 1
        complaint = capsys.readouterr().err
        assert "\x1b" not in complaint
        assert "\x07" not in complaint
        assert complaint.count("\n") == 1
        assert len(complaint) < 1100
