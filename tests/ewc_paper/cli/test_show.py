"""The commands that look at runs: status, report and watch."""

import os
import shutil
from pathlib import Path

import pytest
from support.runs import make_learning_curves, make_strength

from ewc_paper.cli import main
from ewc_paper.cli.show import duration
from ewc_paper.experiments.schematic import Schematic
from ewc_paper.experiments.strength import Strength
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import ERROR, Report
from ewc_paper.runs.progress import ProgressFile
from ewc_paper.sweeps.sweep import Plan, Sweep


def status(path: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> list[str]:
    capsys.readouterr()
    assert main(["status", str(path)]) == code
    return capsys.readouterr().out.splitlines()


def make_run(path: Path) -> RunDirectory:
    """Six networks: one is over, one has failed, and the others have not begun."""
    config = Strength.preset("quick")
    run = RunDirectory(path)
    run.start(config.to_dict())
    first, second, *_ = config.parts()
    for part in (first, second):
        run.part(part.name).start(part.config)
    run.part(first.name).save({}, finished=True)
    (run.part(second.name).path / ERROR).write_text("Traceback\nValueError: \x1b[31mred\n")
    return run


def test_a_run_that_is_not_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    assert status(run.path, capsys, code=1) == [
        "not running: 1 done, 1 failed, 4 waiting of 6 networks",
        "16.7 % done",
        "failed: proximal-100-seed0: ValueError: ?[31mred",
    ]


def test_a_run_that_is_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    with run.locked(), ProgressFile(run.path) as kept:
        kept.keep(Report("proximal-10000-seed0", 0.0, None))
        kept.keep(Report("proximal-10000-seed0", 0.5, None))
        kept._started -= 600
        kept._write()
        said = status(run.path, capsys, code=1)
    assert said[0] == "running: 1 done, 1 running, 1 failed, 3 waiting of 6 networks"
    assert said[1] == "25.0 % done, 70 minutes left"


def test_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep(tmp_path)
    plan = Plan(Schematic(), ("lr=0.1,0.2,0.3",), 3, 1, grid=True, halving=2.0, best_seeds=2)
    sweep.goes_on, sweep.chosen = {"0.25": {"0": True, "1": False}}, {"all": 0}
    sweep.write(plan)
    run = sweep.directory(0, 0)
    run.start(plan.config(0, 0).to_dict())
    run.part("schematic").start({})
    run.part("schematic").save({}, finished=True)
    (first, second) = sweep.best_runs(plan)["all"]
    first.directory.start(first.config.to_dict())
    first.directory.part("schematic").start({})
    (first.directory.part("schematic").path / ERROR).write_text("ValueError: no\n")
    assert second.directory.name == "0000-seed1001"
    assert status(sweep.path, capsys, code=1) == [
        "not running: 1 done, 1 failed, 1 stopped early, 2 waiting of 5 networks",
        "20.0 % done",
        "failed: 0000-seed1000/schematic: ValueError: no",
    ]


def test_what_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 1
    assert "is not a run directory: it has no config.json" in capsys.readouterr().err
    RunDirectory(tmp_path).start({"experiment": "magic"})
    assert main(["status", str(tmp_path)]) == 1
    assert "holds a run of magic: expected one of schematic, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(45, "45 seconds"), (720, "12 minutes"), (12_600, "3.5 hours"), (181_440, "2.1 days")],
)
def test_a_time_as_people_say_it(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_report_writes_the_page_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_learning_curves(tmp_path / "run")
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().out == f"page: {run.path}/report.html\n"
    assert b"<h1>run</h1>" in (run.path / "report.html").read_bytes()


def test_several_runs_make_one_page_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_learning_curves(tmp_path / "a")
    make_strength(tmp_path / "b")
    assert main(["report", "a", "b"]) == 0
    assert b"<h1>a, b</h1>" in (tmp_path / "report.html").read_bytes()
    assert main(["report", "a", "b", "--out", "pages/both.html"]) == 0
    assert (tmp_path / "pages" / "both.html").is_file()


def test_a_page_is_not_written_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_learning_curves(tmp_path / "run")
    (tmp_path / "target").write_text("mine")
    (run.path / "report.html").symlink_to(tmp_path / "target")
    assert main(["report", str(run.path)]) == 1
    assert "is a symbolic link" in capsys.readouterr().err
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "nowhere"], "nowhere holds no run"),
        (["watch", "nowhere"], "nowhere is not a directory"),
    ],
)
def test_a_directory_that_holds_nothing_is_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ewc: {said}")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["watch", ".", "--port", "70000"], "--port must be 0 to 65535, got 70000"),
        (["report", "run", "--out", "/"], "--out must name a file, / is a directory"),
    ],
)
def test_an_option_that_does_not_fit_is_exit_code_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_learning_curves(tmp_path / "run")
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"ewc: {said}\n"


@pytest.mark.parametrize("experiment", [["a"], {"a": 1}, None, 3])
def test_an_experiment_that_is_no_name_is_one_line(
    experiment: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunDirectory(tmp_path).start({"experiment": experiment})
    for command in ("status", "figure", "report"):
        assert main([command, str(tmp_path)]) == 1
        assert "holds a run of no experiment" in capsys.readouterr().err


def test_a_run_without_parts_has_no_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_strength(tmp_path)
    shutil.rmtree(run.path / "parts")
    assert main(["figure", str(tmp_path)]) == 1
    assert "has nothing to draw: no network of it has begun" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["checkpoint.safetensors", ERROR, "metrics.jsonl", "SHA256SUMS"])
@pytest.mark.parametrize("command", ["status", "figure", "report"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_learning_curves(tmp_path)
    file = run.part("ewc").path / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    (run.path / "progress.json").unlink(missing_ok=True)
    os.mkfifo(run.path / "progress.json")
    code = main([command, str(tmp_path)])
    assert code == (1 if name != ERROR or command == "status" else 0)
    assert capsys.readouterr().err.count("\n") <= 1
