"""The command line, from end to end on a tiny data set."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from support.runs import FLAGS, make_learning_curves, write_data

from ewc_paper.cli import main
from ewc_paper.experiments import SUMMARIES
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import STOPPING


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed, _, _ = capsys.readouterr().out.partition("\n\n")
    names = [line.split()[0] for line in listed.splitlines() if not line.startswith(" ")]
    assert names == list(SUMMARIES)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list"], ["--version"]])
def test_what_needs_no_torch_does_not_wait_for_it(arguments: list[str]) -> None:
    program = """
import sys
from ewc_paper.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(sorted(sys.modules.keys() & {"torch", "numpy", "matplotlib", "rich"}))
"""
    command = [sys.executable, "-c", program, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_help_is_about_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "fisher_diagonal" not in out
    assert all(command in out for command in ("run", "list", "figure", "ewc run NAME --help"))


def test_python_m_ewc_paper_is_the_command_line() -> None:
    command = [sys.executable, "-m", "ewc_paper", "list"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.startswith("schematic ")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "many-tasks", "--help"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    out = capsys.readouterr().out
    assert re.search(r"ewc \d+\.\d+\.\d+|COMMAND|quick: 1, laptop: 2", out)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--square", "29"], "--square must be at most 28, got 29"),
        (["--tasks", "0"], "--tasks must be at least 1, got 0"),
        (["--strength", "-1"], "--strength must be at least 0, got -1.0"),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["--validation-samples", "60000"], "--validation-samples must be 0 to 59999, got 60000"),
        (["--data", "nowhere"], "--data must be a directory with IDX files, got nowhere"),
        (["--methods", "sgd", "sgd"], "--methods must all differ, got sgd and sgd"),
        (["--checkpoint-seconds", "nan"], "--checkpoint-seconds must be at least 0, got nan"),
        (["--lr", "inf"], "--lr must be at most 1000, got inf"),
        (["--tasks", "101"], "--tasks must be at most 100, got 101"),
        (["--train-samples", "60001"], "--train-samples must be 1 to 60000, the images there are;"),
        (["--test-samples", "10001"], "--test-samples must be 1 to 10000, the images there are;"),
        (
            ["--train-samples", "59000", "--validation-samples", "5000"],
            "--train-samples must be 1 to 55000, the images there are, as 5000 are held out; got",
        ),
        (["--batch-size", "100000000"], "--batch-size must be at most 60000, got 100000000"),
        (["--fisher-samples", "60001"], "--fisher-samples must be at most 60000, got 60001"),
        (["--epochs", "1000000000"], "--epochs must be at most 100000, got 1000000000"),
        (["--momentum", "1"], "--momentum must be at most 0.9999, got 1"),
        (["--data", ""], "--data must not be empty"),
        (["--engine", "ray", "--address", "head:99999"], "--address must be HOST:PORT, with a"),
        (["--seed", "5", "--resume"], "{out} holds no run to resume: leave out --resume"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["run", "learning-curves", "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ewc: {said.format(out=out)}")
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["recognition", "--games", "Pong", "Nosuch"], "--games: no game is called Nosuch"),
        (["games", "--games", "Pong", "Xyz"], "expected one of 57 Atari games such as Pong"),
        (["games", "--games", "Pong", "minatar/breakout"], "all of Atari or all of MinAtar"),
        (["recognition", "--games", "Pong", "minatar/breakout"], "all of Atari or all of MinAtar"),
        (["learning-curves", "--methods", "dropout"], "need --validation-samples of at least 1"),
        (["strength", "--strengths", "10", "10.0000001"], "--strengths must all differ"),
        (["games", "--replay-capacity", "1000000000"], "--replay-capacity"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--replay-capacity" in arguments:
        arguments = [*arguments, "--segment-steps", "1000000000"]
    assert main(["run", *arguments, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_extra_is_noticed_before_anything_is_written(
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    run = ["run", "learning-curves", "--data", str(data), "--out", str(tmp_path / "run")]
    assert main([*run, *FLAGS, "--tensorboard"]) == 2
    assert "pip install 'ewc-paper[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "games", "--width", "3"], "ewc run games: there is no option --width"),
        (
            ["run", "games", "--size", "1e5"],
            "argument --size: expected a whole number, got 1e5 (see",
        ),
        (["run", "chess"], "ewc run: argument NAME: there is no chess; choose from schematic, "),
        (["rnu", "games"], "argument COMMAND: there is no rnu: did you mean run? (see"),
        (["many-tasks"], "argument COMMAND: did you mean ewc run many-tasks?"),
        (["run", "many-task"], "there is no many-task: did you mean many-tasks?"),
        (["run", "games", "--segment-step", "3"], "--segment-step: did you mean --segment-steps?"),
        (["run", "games", "--preset", "laptp"], "there is no laptp: did you mean laptop?"),
        (["sweep", "games", "--seed", "x"], "argument --seed: expected a whole number, got x"),
        (["figure", ""], "argument DIR: expected a path, got an empty string"),
        (["report", "x", "--out", ""], "argument --out: expected a path, got an empty string"),
        (["status", "a", "b"], "b was not expected"),
        ([], "ewc: the following arguments are required: COMMAND"),
    ],
)
def test_a_mistyped_command_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_run_that_diverged_says_so_instead_of_numbers(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "learning-curves", "--data", str(data), "--out", str(tmp_path / "run"), *FLAGS]
    options = ["--methods", "ewc", "--how", "gradient", "--strength", "1e12"]
    assert main([*run, *options]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ EWC")]
    cells = [cell.strip() for cell in rows[-1].split("│")]
    assert cells[2:5] == ["B", "diverged", "diverged"]


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

    assert main(run) == 2
    assert "exists: continue it with --resume" in capsys.readouterr().err
    assert main([*run, "--resume", "--lr", "0.5"]) == 2
    assert "was started with --lr 0.01, not 0.5: resume with" in capsys.readouterr().err
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
    assert main([*run, *FLAGS]) == 2
    assert "expected t10k-labels-idx1-ubyte" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


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
    command = [sys.executable, "-m", "ewc_paper", *run, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"go on with: ewc run learning-curves --out {tmp_path} --resume" in rest
    part = RunDirectory(tmp_path).part("ewc")
    rows = part.rows()
    state = part.load()
    assert state is not None
    assert state["gradient_steps"] == rows[-1]["gradient_steps"]
    assert not part.finished()


def test_ctrl_c_while_the_workers_start_is_an_interruption(tmp_path: Path, data: Path) -> None:
    """A terminal sends it to all processes, also to workers that still import torch."""
    run = ["run", "learning-curves", "--data", str(data), *FLAGS, "--epochs", "2000"]
    command = [sys.executable, "-m", "ewc_paper", *run, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text().split()) < 2:
        time.sleep(0.01)  # the first is no worker: it keeps track of what they share
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; go on with: ewc run learning-curves" in out
    assert error == f"\newc: {STOPPING}\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_lost_connection_ends_after_a_checkpoint_and_a_second_signal_at_once(
    number: signal.Signals, tmp_path: Path, data: Path
) -> None:
    run = ["run", "learning-curves", "--data", str(data), *FLAGS, "--epochs", "2000"]
    command = [sys.executable, "-m", "ewc_paper", *run, "--methods", "ewc", "--out"]
    for signals in (1, 2):
        process = subprocess.Popen(
            [*command, str(tmp_path / str(signals))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # as without nohup
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.stderr.readline() == "\n"
        assert process.stderr.readline() == f"ewc: {STOPPING}\n"  # before the checkpoint
        if signals == 2:
            process.send_signal(number)
        _, error = process.communicate(timeout=60)
        assert error == ""  # nothing about semaphores
        assert process.returncode in ((130,) if signals == 1 else (130, -number))
    assert RunDirectory(tmp_path / "1").part("ewc").load() is not None


def test_ctrl_c_before_a_run_begins_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ewc_paper.cli.run._plan", interrupt)
    assert main(["run", "schematic"]) == 130
    assert capsys.readouterr().err == "ewc: interrupted\n"


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
    assert main(run) == 2
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
    for command, code in ((["figure", str(tmp_path)], 1), ([*run, *FLAGS], 2)):
        assert main(command) == code
        complaint = capsys.readouterr().err
        assert "\x1b" not in complaint
        assert "\x07" not in complaint
        assert complaint.count("\n") == 1
        assert len(complaint) < 1100


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_a_figure_is_drawn_for_a_paper(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_learning_curves(tmp_path)
    assert main(["figure", str(tmp_path), "--format", kind]) == 0
    assert f"figure: {tmp_path}/figures/learning-curves.{kind}" in capsys.readouterr().out
    assert (tmp_path / "figures" / f"learning-curves.{kind}").stat().st_size > 5_000
