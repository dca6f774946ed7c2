"""States: finished by the checkpoint, failed by the traceback, running by the lock."""

from pathlib import Path

import pytest

from ewc_paper.errors import RunError
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import ERROR, Part, Report
from ewc_paper.runs.progress_file import ProgressFile
from ewc_paper.sweeps.state import (
    PartState,
    counts,
    is_live,
    part_state,
    parts_of,
    seconds_left,
    told_progress,
    why_failed,
)


def make(config: object) -> None:
    """Parts are not made here."""


def test_the_state_of_a_part(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for name in ("done", "failed", "paused", "running"):
        run.part(name).start({})
    run.part("done").save({}, finished=True)
    run.part("paused").save({})
    (run.part("failed").path / ERROR).write_text("Traceback\n  line\nValueError: too much\n")
    names = ("done", "failed", "paused", "running", "missing")
    parts = [Part(name, {}, make) for name in names]
    told = {"running": 0.5, "failed": 0.25}
    states = parts_of(run, parts, told, live=True)
    assert states == [
        PartState("done", "done", 1.0),
        PartState("failed", "failed", 0.25, "ValueError: too much"),
        PartState("paused", "waiting", 0.0),
        PartState("running", "running", 0.5),
        PartState("missing", "waiting", 0.0),
    ]
    assert counts(states) == {"done": 1, "running": 1, "failed": 1, "waiting": 2}
    assert part_state("running", run.part("running").path, 0.5, live=False).state == "waiting"


def test_a_prefix_names_the_parts_of_a_sweep(tmp_path: Path) -> None:
    (state,) = parts_of(
        RunDirectory(tmp_path), [Part("a", {}, make)], {"0001/a": 0.5}, live=True, prefix="0001/"
    )
    assert state == PartState("0001/a", "running", 0.5)


def test_a_run_is_live_while_it_holds_its_lock(tmp_path: Path) -> None:
    assert not is_live(tmp_path)
    with RunDirectory(tmp_path).locked():
        assert is_live(tmp_path)
    assert not is_live(tmp_path)


def test_time_left_is_at_the_speed_of_this_session(tmp_path: Path) -> None:
    states = [PartState("a", "running", 0.5), PartState("b", "waiting", 0.0)]
    done = PartState("c", "done", 1.0)
    with RunDirectory(tmp_path).locked(), ProgressFile(tmp_path) as kept:
        assert seconds_left(tmp_path, states) is None  # nothing is known yet
        kept(Report("a", 0.25, None))
        kept(Report("a", 0.5, None))
        kept._started -= 100
        kept._write()
        assert seconds_left(tmp_path, [*states, done]) == pytest.approx(1.5 * 100 / 0.25, rel=0.05)
    assert seconds_left(tmp_path, states) is None  # nobody is running


def test_why_a_part_failed_is_the_last_line_of_its_traceback(tmp_path: Path) -> None:
    assert why_failed(tmp_path) == ""
    (tmp_path / ERROR).write_text("")
    assert why_failed(tmp_path) == ""


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere is no directory"):
        told_progress(tmp_path / "nowhere")
