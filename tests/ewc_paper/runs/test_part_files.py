"""The files of a part arrive as they were, without those that only its own process needs."""

from pathlib import Path

import pytest
from support.quick_learners import make_short

from ewc_paper.runs.engine import Job, Part
from ewc_paper.runs.part_files import read_files, write_files


def test_files_are_written_with_the_checkpoint_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    one = Job("a", tmp_path, Part("a", {}, make_short, temporary_files=("*.bin",)))
    given = {"checkpoint.safetensors": b"1", "metrics.jsonl": b"2", "clips/a.png": b"3"}
    monkeypatch.setattr(
        "ewc_paper.runs.part_files.replace_file", lambda file, content: written.append(file.name)
    )
    write_files(tmp_path, given)
    assert written == ["a.png", "metrics.jsonl", "checkpoint.safetensors"]
    monkeypatch.undo()
    write_files(tmp_path, given)
    for name in ("lock", "previous.safetensors", "replay.bin"):
        (tmp_path / name).touch()
    assert read_files(tmp_path, one) == given
    assert read_files(tmp_path / "nowhere", one) == {}
