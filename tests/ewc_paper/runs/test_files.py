"""Files are written completely or not at all, and never through a symbolic link."""

import errno
import os
from pathlib import Path

import pytest

from ewc_paper.errors import RunError
from ewc_paper.runs import files
from ewc_paper.runs.files import (
    parse_record,
    read_bytes,
    refuse_link,
    refuse_links,
    replace_file,
    sync_directory,
    write_synced,
    writing_to,
)


def test_a_written_file_replaces_the_name_and_not_the_content_of_hard_links(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"old")
    os.link(file, link)
    write_synced(file, b"new")
    assert (file.read_bytes(), link.read_bytes()) == (b"new", b"old")
    sync_directory(tmp_path)


def test_replacing_a_file_creates_its_directory(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "file"
    assert replace_file(file, b"first") == file
    replace_file(file, b"second")
    assert file.read_bytes() == b"second"
    assert [one.name for one in file.parent.iterdir()] == ["file"]


def test_a_file_that_cannot_be_replaced_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = replace_file(tmp_path / "file", b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*file \(No space left on device\)"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_links_are_refused_at_any_depth_but_the_directory_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    refuse_links(tmp_path / "linked")
    with pytest.raises(RunError, match="linked is a symbolic link"):
        refuse_link(tmp_path / "linked")
    (tmp_path / "real" / "deep" / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunError, match="deep/link is a symbolic link"):
        refuse_links(tmp_path / "linked")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    assert read_bytes(tmp_path / "file") == b"content"
    with pytest.raises(RunError, match="expected a file, got a directory, pipe or device"):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", r"config is damaged: expected JSON, got \{$"),
        (b"[1]", r"config is damaged: expected a JSON object, got \[1\]$"),
        (b"9" * 50, rf"expected a JSON object, got {'9' * 40}"),
    ],
)
def test_a_damaged_record_is_named(text: bytes, said: str) -> None:
    assert parse_record(b'{"seed": 1}', "config") == {"seed": 1}
    with pytest.raises(RunError, match=said):
        parse_record(text, "config")


def test_a_failed_write_says_what_to_do(tmp_path: Path) -> None:
    said = (
        r"cannot write to .* \(Disk quota exceeded\).* free disk space and continue with --resume"
    )
    with pytest.raises(RunError, match=said), writing_to(tmp_path):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")
