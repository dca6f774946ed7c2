"""`ewc sweep` from the command line: bad options write nothing, kills change nothing."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from support.runs import FLAGS, write_data

from ewc_paper.cli import main
from ewc_paper.cli.show import is_sweep
from ewc_paper.runs import engine
from ewc_paper.runs.directory import RunDirectory

TINY = ["--samples", "50", "--gradient-steps", "10", "--grid", "5"]
OVER = ["--over", "lr=log:1e-3..1", "strength=0..10", "--trials", "3"]
KILLS = 10
FORK = multiprocessing.get_context("fork")


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["sweep", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ewc: ")
    assert error.count("\n") == 1
    return error


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweeps") / "sweep"
    command = ["sweep", "schematic", *TINY, *OVER, "--out", str(path), "--best-seeds", "1"]
    with pytest.MonkeyPatch.context() as patch:  # workers of fork start at once
        patch.setattr(engine.multiprocessing, "get_context", lambda kind: FORK)
        assert main(command) == 0
    return path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--over must say what to go over"),
        (["--over", "lr"], "--over must be FIELD=SPEC"),
        (["--over", "magic=1,2"], "there is no option magic"),
        (["--over", "lr=1..0.1", "--trials", "2"], "a range must rise"),
        (["--over", "lr=0.1..1"], "--trials must say how many combinations to draw"),
        (["--over", "seed=1,2"], "cannot go over seed"),
        (["--over", "lr=0.1,0.2", "--trials", "0"], "--trials must be at least 1, got 0"),
        (["--over", "lr=0.1,0.2", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--over", "lr=0.1,0.2", "--halving", "1"], "--halving must be at least 1.5"),
        (
            ["--over", "grid=1000,2", "samples=999,1"],
            "trial 0 (grid 1000, samples 999): 1000 x 1000",
        ),
        (["--over", "lr=0.1,0.2", "--out", ""], "--out must name a directory"),
        (["--over", "lr=0.1,0.2", "--address", "auto"], "add --engine ray"),
    ],
)
def test_what_does_not_fit_is_one_line_and_nothing_is_written(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(["schematic", *arguments], capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_a_directory_of_ordinary_runs(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_sweep(finished)
    names = sorted(run.name for run in (finished / "trials").iterdir())
    assert names == ["0000-seed0", "0001-seed0", "0002-seed0"]
    assert not is_sweep(finished / "trials" / names[0])
    capsys.readouterr()
    assert main(["figure", str(finished / "trials" / names[0])]) == 0
    assert main(["figure", str(finished)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "minus the mean of EWC's losses on both tasks" in said
    assert "chosen trials, on seeds that chose nothing" in said


def test_resuming_takes_the_sweep_as_it_is_and_refuses_another(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["schematic", "--out", str(finished)]
    assert "exists: continue it with --resume" in refused([*here, *OVER], capsys)
    again = [*here, "--resume"]
    assert "--lr 0.1, not 0.5" in refused([*again, "--lr", "0.5"], capsys)
    assert "--over lr=log:1e-3..1 strength=0..10, not lr=1,2" in refused(
        [*again, "--over", "lr=1,2"], capsys
    )
    assert "no --halving, not 2" in refused([*again, "--halving", "2"], capsys)
    assert "--trials can only grow" in refused([*again, "--trials", "2"], capsys)
    said = refused(["strength", "--out", str(finished), "--resume"], capsys)
    assert "is a sweep of schematic, not strength" in said


def test_a_trial_that_another_process_writes_is_named_and_the_sweep_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine.multiprocessing, "get_context", lambda kind: FORK)
    monkeypatch.setattr(engine, "run_job", partial(engine.run_job, patience_seconds=0.0))
    sweep = ["sweep", "schematic", "--out", str(tmp_path / "new")]
    busy = RunDirectory(tmp_path / "new" / "trials" / "0001-seed0").part("schematic")
    plan = ["--over", "lr=0.1,0.2", *TINY]
    assert main([*sweep, *plan]) == 0
    shutil.rmtree(busy.path)
    busy.path.mkdir()
    with busy.locked():
        assert main([*sweep, "--resume"]) == 1
    said = capsys.readouterr().err
    assert "ewc: trial 1: " in said
    assert "is being written by another process" in said
    assert main([*sweep, "--resume"]) == 0


def test_a_directory_without_a_sweep_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = ["schematic", *OVER, "--out", str(tmp_path / "new"), "--resume"]
    assert "holds no sweep to resume" in refused(nowhere, capsys)
    (tmp_path / "thesis.txt").write_text("all of it")
    mine = ["schematic", *OVER, "--out", str(tmp_path)]
    assert "is not empty and holds no sweep" in refused(mine, capsys)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_help_shows_how_to_write_what_is_gone_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["sweep", "many-tasks", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "lr=log:1e-5..1e-3 a range on a log scale" in text
    assert text.count("--seeds SEEDS") + text.count("--seeds INT") == 1
    assert "--tensorboard" not in text


def sweep_quickly(arguments: list[str], output: Path) -> None:
    """The command in a process of its own whose workers start at once, with torch loaded."""
    engine.multiprocessing.get_context = lambda kind: FORK  # type: ignore[assignment]
    with open(output, "w") as sys.stdout:
        code = main(["sweep", *arguments])
    os._exit(code)


def run_until_killed(arguments: list[str], output: Path, seconds: float | None) -> int | None:
    """Run the command and kill it after some time, if it has not ended by then."""
    process = FORK.Process(target=sweep_quickly, args=(arguments, output))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    return process.exitcode


def tables(output: Path) -> list[str]:
    return [line for line in output.read_text().splitlines() if "│" in line]


@pytest.mark.slow
def test_killed_at_random_moments_a_sweep_ends_with_the_same_table(tmp_path: Path) -> None:
    data = ["--data", str(write_data(tmp_path / "data")), "--validation-samples", "40"]
    rate = FLAGS.index("--lr")  # which the sweep goes over
    flags = [*FLAGS[:rate], *FLAGS[rate + 2 :]]
    options = [*flags, *data, "--methods", "ewc", "dropout", "--dropout-epochs", "2"]
    over = ["--over", "lr=log:1e-3..1", "dropout_lr=log:1e-3..1", "--trials", "6", "--halving", "2"]
    command = ["many-tasks", *options, *over, "--best-seeds", "1", "--checkpoint-seconds", "0"]
    start = time.monotonic()
    whole = [*command, "--out", str(tmp_path / "whole")]
    assert run_until_killed(whole, tmp_path / "whole.txt", None) == 0
    seconds = time.monotonic() - start
    expected = tables(tmp_path / "whole.txt")
    assert len(expected) > 6
    moments, kills, number = random.Random(0), 0, 0
    while kills < KILLS:
        number += 1
        killed = [*command, "--out", str(tmp_path / str(number))]
        ended: int | None = -signal.SIGKILL
        while ended == -signal.SIGKILL and kills < KILLS:
            wait = moments.uniform(0, 0.6 * seconds)
            ended = run_until_killed(killed, tmp_path / "killed.txt", wait)
            kills += ended == -signal.SIGKILL
            if (tmp_path / str(number)).exists() and "--resume" not in killed:
                killed.append("--resume")
        assert ended in (0, -signal.SIGKILL)
        assert run_until_killed(killed, tmp_path / "resumed.txt", None) == 0
        assert tables(tmp_path / "resumed.txt") == expected
