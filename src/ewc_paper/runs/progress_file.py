"""How far the parts of a run are, in a file that `ewc status` reads while the run goes on."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ewc_paper.errors import RunError
from ewc_paper.runs.engine import Report
from ewc_paper.runs.files import parse_record, read_bytes
from ewc_paper.runs.schema import SchemaError, integer, mapping, number, record, short_text

NAME = "progress.json"
EVERY_SECONDS = 2.0


class ProgressFile:
    """Keeps the progress of every part that has reported; used as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / NAME
        self._started = time.time()
        self._first: dict[str, float] = {}  # progress at the first report, to know the speed
        self._last: dict[str, float] = {}
        self._written = 0.0

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write()

    def __call__(self, report: Report) -> None:
        """Keep a report; it is written every few seconds."""
        self._first.setdefault(report.part, report.progress)
        self._last[report.part] = report.progress
        if time.monotonic() - self._written >= EVERY_SECONDS:
            self._write()

    def _write(self) -> None:
        """Replace the file; it is not synced, as it says nothing that a resume needs."""
        self._written = time.monotonic()
        made = sum(self._last.values()) - sum(self._first.values())
        content = {
            "process": os.getpid(),
            "seconds": time.time() - self._started,
            "made": made,
            "parts": self._last,
        }
        new = self._file.with_name(f"{NAME}.new")
        with suppress(OSError):  # a full disk is noticed where it matters
            new.write_text(json.dumps(content))
            os.replace(new, self._file)


_CHECK = record(
    process=integer(), seconds=number(0), made=number(0), parts=mapping(short_text, number(0, 1))
)


def read_progress(directory: Path) -> dict[str, Any]:
    """Return what the file says: `seconds` of this session, progress `made`, and that of `parts`.

    Without a file that can be read, nothing was made.
    """
    nothing: dict[str, Any] = {"process": 0, "seconds": 0.0, "made": 0.0, "parts": {}}
    try:
        content = parse_record(read_bytes(directory / NAME), NAME)
        _CHECK(content)
    except (OSError, RunError, SchemaError):
        return nothing
    return content
