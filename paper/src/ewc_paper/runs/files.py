"""Files of a run directory: written completely or not at all, never through a symbolic link."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ewc_paper.errors import Damaged, RunError
from ewc_paper.terminal import shown


def write_synced(file: Path, content: bytes) -> None:
    """Write a new file and sync it; hard links to an old one of that name keep their content."""
    file.unlink(missing_ok=True)
    with open(file, "xb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def replace_file(file: Path, content: bytes) -> Path:
    """Create or replace a file atomically, and its directory if there is none; return its path."""
    new = file.with_name(f"{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_synced(new, content)
            os.replace(new, file)
        except OSError:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunError(f"cannot write {file} ({error.strerror})") from error
    return file


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that renames in it survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_link(path: Path) -> None:
    """Raise RunError if a path is a symbolic link, since writing would change its target."""
    if path.is_symlink():
        raise RunError(
            f"{path} is a symbolic link, through which a run would write to another place: "
            "remove it, or replace it with what it points to"
        )


def refuse_links(directory: Path) -> None:
    """Raise RunError if there is a symbolic link inside a directory; it may be one itself."""
    for folder, directories, files in os.walk(directory):
        for name in (*directories, *files):
            refuse_link(Path(folder, name))


def read_bytes(file: Path) -> bytes:
    """Return the content of a regular file; refuse pipes and devices, which may never end."""
    if file.exists() and not file.is_file():
        raise Damaged(f"{file} is damaged: expected a file, got a directory, pipe or device")
    return file.read_bytes()


def parse_record(text: bytes, source: str) -> dict[str, Any]:
    """Parse a JSON object; an error names the source of the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{source} is damaged: expected JSON, got {_start(text)}") from error
    if not isinstance(value, dict):
        raise Damaged(f"{source} is damaged: expected a JSON object, got {_start(text)}")
    return value


def _start(text: bytes) -> str:
    return shown(text.decode(errors="replace"))


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn a failed write to a run directory into a RunError that says what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write to {path} ({error.strerror}); the last checkpoint is intact: "
            "free disk space and continue with --resume"
        ) from error
