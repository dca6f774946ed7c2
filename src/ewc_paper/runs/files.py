"""Files of a run directory: written whole or not at all, never through a link, read with care."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ewc_paper.errors import RunError


def write_synced(file: Path, content: bytes) -> None:
    """Write a new file in place of any other, which is unlinked: its links keep their content."""
    file.unlink(missing_ok=True)
    with open(file, "xb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def replace_file(file: Path, content: bytes) -> Path:
    """Put a file in place of any other at once, whatever happens; makes the directory."""
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
    """Make renames in a directory outlive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_link(path: Path) -> None:
    """Raise if a path is a symbolic link, through which writing would change another place."""
    if path.is_symlink():
        raise RunError(
            f"{path} is a symbolic link, through which a run would write to another place: "
            "remove it, or put what it points to there"
        )


def refuse_links(directory: Path) -> None:
    """Raise at the first symbolic link inside a directory; it may be one itself."""
    for folder, directories, files in os.walk(directory):
        for name in (*directories, *files):
            refuse_link(Path(folder, name))


def read_bytes(file: Path) -> bytes:
    """The content of a regular file; a pipe or a device may never end."""
    if file.exists() and not file.is_file():
        raise RunError(f"{file} is damaged: expected a file, got a directory, pipe or device")
    return file.read_bytes()


def parse_record(text: bytes, source: str) -> dict[str, Any]:
    """The JSON object in a text; if there is none, raise and name the source."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{source} is damaged: expected JSON, got {_start(text)}") from error
    if not isinstance(value, dict):
        raise RunError(f"{source} is damaged: expected a JSON object, got {_start(text)}")
    return value


def _start(text: bytes) -> str:
    return repr(text[:40]) + ("..." if len(text) > 40 else "")


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn a failed write into one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write to {path} ({error.strerror}); the last checkpoint is intact: "
            "make room and go on with --resume"
        ) from error
