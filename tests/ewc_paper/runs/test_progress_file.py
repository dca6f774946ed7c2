"""The file with the progress of a run: written while it goes on, and never trusted blindly."""

import json
from pathlib import Path

import pytest

from ewc_paper.runs import progress_file
from ewc_paper.runs.engine import Report
from ewc_paper.runs.progress_file import NAME, ProgressFile, read_progress


def test_what_was_made_in_this_session_is_told_apart_from_what_was_there(tmp_path: Path) -> None:
    with ProgressFile(tmp_path) as kept:
        for part, progress in (("a", 0.5), ("b", 1.0), ("a", 0.75), ("c", 0.0), ("c", 0.5)):
            kept(Report(part, progress, None))
    told = read_progress(tmp_path)
    assert told["parts"] == {"a": 0.75, "b": 1.0, "c": 0.5}
    assert told["made"] == pytest.approx(0.25 + 0.5)
    assert told["seconds"] >= 0


def test_it_is_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 2.5, 2.5, 3.0])
    monkeypatch.setattr(progress_file.time, "monotonic", lambda: next(clock))
    with ProgressFile(tmp_path) as kept:  # written at 0
        kept(Report("a", 0.1, None))  # at 1: not yet
        assert read_progress(tmp_path)["parts"] == {}
        kept(Report("a", 0.2, None))  # at 2.5
        assert read_progress(tmp_path)["parts"] == {"a": 0.2}
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize(
    "content", ["{", "[]", json.dumps({"parts": {"a": 2}}), json.dumps({"parts": {}, "made": -1})]
)
def test_a_damaged_file_says_nothing(tmp_path: Path, content: str) -> None:
    assert read_progress(tmp_path)["parts"] == {}
    (tmp_path / NAME).write_text(content)
    assert read_progress(tmp_path)["made"] == 0
