"""How far parts are: the progress file, and the states that are read from a directory."""

import json
from pathlib import Path

import pytest

from ewc_paper.errors import RunError
from ewc_paper.runs import progress
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import ERROR, Part, Report
from ewc_paper.runs.progress import (
    NAME,
    PartState,
    ProgressFile,
    counts,
    part_state,
    parts_of,
    read_progress,
    seconds_left,
    told_progress,
    why_failed,
)


def test_what_was_made_in_this_session_is_told_apart_from_what_was_there(tmp_path: Path) -> None:
    with ProgressFile(tmp_path) as kept:
        for part, progress in (("a", 0.5), ("b", 1.0), ("a", 0.75), ("c", 0.0), ("c", 0.5)):
            kept.keep(Report(part, progress, None))
    told = read_progress(tmp_path)
    assert told["parts"] == {"a": 0.75, "b": 1.0, "c": 0.5}
    assert told["made"] == pytest.approx(0.25 + 0.5)
    assert told["seconds"] >= 0


def test_the_times_of_all_sessions_are_added_and_breaks_left_out(tmp_path: Path) -> None:
    begun = read_progress(tmp_path)["begun"]
    assert begun == 0  # not known
    for session in range(2):
        with ProgressFile(tmp_path) as kept:
            kept._started -= 100
        told = read_progress(tmp_path)
        assert told["seconds"] == pytest.approx(100, abs=5)
        assert told["all_seconds"] == pytest.approx(100 * (session + 1), abs=5)
        assert told["begun"] == begun or session == 0
        begun = told["begun"]


def test_it_is_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 2.5, 2.5, 3.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with ProgressFile(tmp_path) as kept:  # written at 0
        kept.keep(Report("a", 0.1, None))  # at 1: not yet
        assert read_progress(tmp_path)["parts"] == {}
        kept.keep(Report("a", 0.2, None))  # at 2.5
        assert read_progress(tmp_path)["parts"] == {"a": 0.2}
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize(
    "content", ["{", "[]", json.dumps({"parts": {"a": 2}}), json.dumps({"parts": {}, "made": -1})]
)
def test_a_damaged_file_says_nothing(tmp_path: Path, content: str) -> None:
    assert read_progress(tmp_path)["parts"] == {}
    (tmp_path / NAME).write_text(content)
    assert read_progress(tmp_path)["made"] == 0


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
    states = parts_of(run, parts, told, live=True, check=RunDirectory.check)
    assert states == [
        PartState("done", "done", 1.0),
        PartState("failed", "failed", 0.25, "ValueError: too much"),
        PartState("paused", "waiting", 0.0),
        PartState("running", "running", 0.5),
        PartState("missing", "waiting", 0.0),
    ]
    assert counts(states) == {"done": 1, "running": 1, "failed": 1, "waiting": 2}
    running = run.part("running")
    assert part_state("running", running, 0.5, live=False, check=RunDirectory.check)[1] == "waiting"
    assert part_state("lost", running, 1.0, live=False, check=RunDirectory.check).progress == 0


def test_a_prefix_names_the_parts_of_a_sweep(tmp_path: Path) -> None:
    (state,) = parts_of(
        RunDirectory(tmp_path),
        [Part("a", {}, make)],
        {"0001/a": 0.5},
        live=True,
        check=RunDirectory.check,
        prefix="0001/",
    )
    assert state == PartState("0001/a", "running", 0.5)


def test_a_run_is_live_while_it_holds_its_lock(tmp_path: Path) -> None:
    assert not RunDirectory(tmp_path).is_being_written()
    with RunDirectory(tmp_path).locked():
        assert RunDirectory(tmp_path).is_being_written()
    assert not RunDirectory(tmp_path).is_being_written()


def test_time_left_is_at_the_speed_of_this_session(tmp_path: Path) -> None:
    states = [PartState("a", "running", 0.5), PartState("b", "waiting", 0.0)]
    done = PartState("c", "done", 1.0)
    with RunDirectory(tmp_path).locked(), ProgressFile(tmp_path) as kept:
        assert seconds_left(tmp_path, states) is None  # nothing is known yet
        kept.keep(Report("a", 0.25, None))
        kept.keep(Report("a", 0.5, None))
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
