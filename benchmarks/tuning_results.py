"""Results of fine-tuning in a file: one line of JSON per run, so that a stopped benchmark goes on.

The first line has the settings that all runs of the file share.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Key = tuple[int, str, float]  # seed, line and value


class Results:
    """The rows of a file, with those that are added.

    Args:
        file: where the rows are.
        settings: what all of them share; the file must have been made with the same.
    """

    def __init__(self, file: Path, settings: Mapping[str, Any]) -> None:
        self.file = file
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": dict(settings)})
        header, *_ = _read(file) or [{}]
        if header.get("settings") != dict(settings):
            raise SystemExit(
                f"expected results of {dict(settings)} in {file}, found {header.get('settings')}: "
                "give another folder"
            )

    @property
    def rows(self) -> list[Row]:
        """The rows that are in the file now; two processes may share it."""
        return _read(self.file)[1:]

    def __contains__(self, key: Key) -> bool:
        return any((row["seed"], row["method"], row["value"]) == key for row in self.rows)

    def add(self, key: Key, points: list[dict[str, float]]) -> None:
        """Append the losses of a run."""
        seed, method, value = key
        self._append({"seed": seed, "method": method, "value": value, "points": points})

    def _append(self, row: Row) -> None:
        with self.file.open("a+b") as file:
            if file.tell() and not _ends_with_newline(self.file):
                file.write(b"\n")  # after a line that was cut off
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")


def _ends_with_newline(file: Path) -> bool:
    return file.read_bytes().endswith(b"\n")


def _read(file: Path) -> list[Row]:
    """Return the rows of a file without lines that were cut off when a run was stopped."""
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
