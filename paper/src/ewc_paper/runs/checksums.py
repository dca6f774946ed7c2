"""Checksums of what has been measured and of the options that it was measured with.

A record that is written before the end, such as config.json, carries a checksum of its own. What
is finished has a file SHA256SUMS beside it, in the format of the program of that name, so that
`sha256sum --check SHA256SUMS` verifies it without this package. A part has one as soon as it is
finished; that of a finished run, or sweep, lists the files of all its parts too, so that none of
them can be lost. A part of a stored run may be listed there alone.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ewc_paper.errors import Damaged
from ewc_paper.runs.checkpoint import CURRENT, NEW, PREVIOUS
from ewc_paper.runs.files import read_bytes, replace_file
from ewc_paper.terminal import printable

SUMS = "SHA256SUMS"
FORMAT = 2  # of records; those without a format are older, and have no checksum
LEVELS_UP = 4  # part -> parts -> run -> trials -> sweep
PART = re.compile(r"((?:.*/)?parts/[^/]+)/")
LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)\n")

Sums = dict[str, str]  # by path of a file, relative to the directory: its checksum


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its format and a checksum over all of it."""
    whole = {**record, "format": FORMAT}
    return {**whole, "sha256": record_sha256(whole)}


def without_checksum(record: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a record as it was before `with_checksum`; raise Damaged if it was changed since.

    Args:
        record: as it is stored; one without a format is of an older version and is not checked.
        source: names the record in an error.
    """
    whole = dict(record)
    checksum = whole.pop("sha256", None)
    if "format" in whole or checksum is not None:
        if checksum != record_sha256(whole):
            raise Damaged(
                f"{source} was changed after it was written: its checksum is that of other "
                "content; restore the file"
            )
        del whole["format"]
    return whole


def record_sha256(record: Mapping[str, Any]) -> str:
    """Return the checksum of a record, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def seal_part(part: Path) -> None:
    """Write the checksums of a part that is finished: its options, its rows, and its clips."""
    _write_sums(part, _files_of(part))


def seal(directory: Path, *, stored: bool = False) -> None:
    """Write the checksums of a finished run or sweep: its options and its finished parts.

    Args:
        directory: of the run or sweep.
        stored: whether parts that are not sealed are listed too. A run that is stored without
            checkpoints, or one of an older version, is sealed with it by hand:
            `python -c "from ewc_paper.runs.checksums import *; seal(Path('DIR'), stored=True)"`.
    """
    files = [directory / name for name in ("config.json", "sweep.json")]
    for run in (directory, *directory.glob("trials/*/"), *directory.glob("best/*/")):
        files.append(run / "config.json")
        for part in run.glob("parts/*/"):
            if stored or (part / SUMS).is_file():
                files += _files_of(part)
    _write_sums(directory, {file for file in files if file.is_file()})


LEFT_OUT = {SUMS, CURRENT, PREVIOUS, NEW, "lock", "error.txt"}


def _files_of(part: Path) -> list[Path]:
    return [
        file
        for file in part.rglob("*")
        if file.is_file()
        and file.name not in LEFT_OUT
        and file.suffix != ".new"
        and "damaged" not in file.relative_to(part).parts
    ]


def _write_sums(directory: Path, files: Iterable[Path]) -> None:
    lines = [
        f"{_file_sha256(file)}  {file.relative_to(directory).as_posix()}\n"
        for file in sorted(files)
    ]
    replace_file(directory / SUMS, "".join(lines).encode())


def read_sums(directory: Path) -> Sums | None:
    """Return the checksums that are stored in a directory, or None if there are none."""
    file = directory / SUMS
    try:
        text = read_bytes(file).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        text = ""
    lines = LINE.findall(text)
    if not lines or sum(len(digest) + len(name) + 3 for digest, name in lines) != len(text):
        raise Damaged(f"{file} is damaged: expected a checksum and the name of a file per line")
    return {name: digest for digest, name in lines}


def sums_of(directory: Path) -> Sums | None:
    """Return the checksums of the files in a directory: its own, or those of what it belongs to."""
    own = read_sums(directory)
    if own is not None:
        return own
    place = Path(directory).absolute()
    for above in list(place.parents)[:LEVELS_UP]:
        prefix = f"{place.relative_to(above).as_posix()}/"
        if not _is_run(above):
            continue
        sums = read_sums(above) or {}
        mine = {name.removeprefix(prefix): sums[name] for name in sums if name.startswith(prefix)}
        if mine:
            return mine
    return None


def _is_run(directory: Path) -> bool:
    """Whether checksums in a directory are ours: people keep such files for other things too."""
    return any((directory / name).is_file() for name in ("config.json", "sweep.json"))


def check_sums(directory: Path, sums: Sums) -> None:
    """Raise Damaged if a file that is listed is missing, or is not what it was.

    Args:
        directory: of the files.
        sums: what is listed; of files further inside only whether they are there is looked at, as
            each part is checked by itself.
    """
    for name, expected in sums.items():
        file = directory / name
        if not file.is_file():
            raise Damaged(
                f"{printable(str(file))} is lost: {SUMS} lists it; restore it, or remove its "
                "directory and run it again with --resume"
            )
        if not name.startswith(INSIDE) and _file_sha256(file) != expected:
            raise Damaged(
                f"{printable(str(file))} was changed after it was finished ({SUMS} has another "
                "checksum): restore it, or remove its directory and run it again with --resume"
            )


INSIDE = ("parts/", "trials/", "best/")  # directories with checks of their own


def check_lost_plan(directory: Path) -> None:
    """Raise Damaged if the plan of a sweep is lost, without which it looks like some runs."""
    sums: Sums = {}
    with suppress(Damaged):  # people keep files of that name for other things too
        sums = read_sums(directory) or {}
    if any(name.startswith("trials/") for name in sums):
        check_sums(directory, {name: sums[name] for name in sums if name == "sweep.json"})


def share_sums(directory: Path) -> None:
    """Move the checksums of a run or sweep into its parts, before it is continued.

    So each part stays protected, and one that was removed on purpose can be run again.
    """
    sums = read_sums(directory)
    if sums is None:
        return
    for place in {directory / match[1] for name in sums if (match := PART.match(name))}:
        if place.is_dir() and not (place / SUMS).exists():
            own = sums_of(place) or {}
            lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(own.items()))
            replace_file(place / SUMS, lines.encode())
    (directory / SUMS).unlink()


def _file_sha256(file: Path) -> str:
    return hashlib.sha256(read_bytes(file)).hexdigest()
