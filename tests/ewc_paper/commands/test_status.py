"""`ewc status`: counts, progress, why parts failed, and the time left."""

from pathlib import Path

import pytest

from ewc_paper.cli import main
from ewc_paper.commands.status import duration
from ewc_paper.experiments.schematic.run import Schematic
from ewc_paper.experiments.strength.run import Strength
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import ERROR, Report
from ewc_paper.runs.progress_file import ProgressFile
from ewc_paper.sweeps.sweep import Plan, Sweep


def status(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["status", str(path)]) == 0
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
    assert status(run.path, capsys) == [
        "not running: 1 done, 1 failed, 4 waiting of 6 networks",
        "16.7 % done",
        "failed: proximal-100-seed0: ValueError: ?[31mred",
    ]


def test_a_run_that_is_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    with run.locked(), ProgressFile(run.path) as kept:
        kept(Report("proximal-10000-seed0", 0.0, None))
        kept(Report("proximal-10000-seed0", 0.5, None))
        kept._started -= 600
        kept._write()
        said = status(run.path, capsys)
    assert said[0] == "running: 1 done, 1 running, 1 failed, 3 waiting of 6 networks"
    assert said[1] == "25.0 % done, 70 minutes left"


def test_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep(tmp_path)
    plan = Plan(Schematic(), ("lr=0.1,0.2,0.3",), 3, 1, grid=True, halving=2.0, best_seeds=2)
    sweep.goes_on, sweep.chosen = {"0.25": {"0": True, "1": False}}, {"all": 0}
    sweep.write(plan)
    run = sweep.directory(0, 0)
    run.part("schematic").start({})
    run.part("schematic").save({}, finished=True)
    (first, second) = sweep.best_runs(plan)["all"]
    first.directory.part("schematic").start({})
    (first.directory.part("schematic").path / ERROR).write_text("ValueError: no\n")
    assert second.directory.name == "0000-seed1001"
    assert status(sweep.path, capsys) == [
        "not running: 1 done, 1 failed, 1 stopped early, 2 waiting of 5 networks",
        "20.0 % done",
        "failed: 0000-seed1000/schematic: ValueError: no",
    ]


def test_what_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 1
    assert "is not a run directory: it has no config.json" in capsys.readouterr().err
    RunDirectory(tmp_path).start({"experiment": "magic"})
    assert main(["status", str(tmp_path)]) == 1
    assert "holds a run of magic, which is not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(45, "45 seconds"), (720, "12 minutes"), (12_600, "3.5 hours"), (181_440, "2.1 days")],
)
def test_a_time_as_people_say_it(seconds: float, said: str) -> None:
    assert duration(seconds) == said
