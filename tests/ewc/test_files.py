"""Files are written as a whole or not at all, and read without running anything."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ewc import files
from ewc.files import read_tensors, write_tensors

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", TENSORS, {"word": "ü"})
    tensors, metadata = read_tensors(tmp_path / "file")
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert metadata == {"kind": "ewc-memory", "word": "ü"}
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tensors(tmp_path / "file", TENSORS, {})

    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files.os, function, fail)
    with pytest.raises(OSError, match="no space left"):
        write_tensors(tmp_path / "file", {"c": torch.ones(3)}, {})
    assert read_tensors(tmp_path / "file")[0].keys() == TENSORS.keys()
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_it_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda fd: (calls.append("sync"), fsync(fd)))
    monkeypatch.setattr(files.os, "replace", lambda *a: (calls.append("rename"), replace(*a)))
    write_tensors(tmp_path / "file", TENSORS, {})
    assert calls == ["sync", "rename", "sync"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is none at"):
        read_tensors(tmp_path / "file")
    save_file(TENSORS, tmp_path / "fisher")
    with pytest.raises(ValueError, match=r"another safetensors file; .* memory\.consolidate"):
        read_tensors(tmp_path / "fisher")
    torch.save(TENSORS, tmp_path / "pickle")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        read_tensors(tmp_path / "pickle")


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", TENSORS, {})
    content = (tmp_path / "file").read_bytes()
    for length in (0, 7, 60, len(content) - 1):
        (tmp_path / "file").write_bytes(content[:length])
        with pytest.raises(ValueError, match="damaged or not a safetensors file"):
            read_tensors(tmp_path / "file")
