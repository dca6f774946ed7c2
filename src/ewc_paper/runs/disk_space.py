"""Checks before a run starts that its files will fit on the disk."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from ewc_paper.errors import RunError
from ewc_paper.runs.engine import Part


def check_disk_space(path: Path, parts: Sequence[Part], workers: int) -> None:
    """Raise RunError if the files of the parts need more disk space than there is.

    Args:
        path: run directory, which need not exist yet.
        parts: all parts of the run.
        workers: number of parts that run at the same time.
    """
    needed = largest_total_bytes(parts, workers)
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free + _used_bytes(path)
    if needed > free:
        choices = ["free disk space", "choose another --out", "fewer --workers"]
        choices += sorted({part.disk_advice for part in parts if part.disk_advice})
        raise RunError(
            f"{path} will need {needed / 1e9:.1f} GB of disk space for the files of "
            f"{min(workers, len(parts))} parts at a time, but only {free / 1e9:.1f} GB are "
            f"free: {', '.join(choices[:-1])} or {choices[-1]}"
        )


def largest_total_bytes(parts: Sequence[Part], workers: int) -> int:
    """Return the most disk space that `workers` parts can need at the same time."""
    return sum(sorted((part.disk_bytes for part in parts), reverse=True)[:workers])


def _used_bytes(path: Path) -> int:
    """Disk space that the files of a resumed run take already."""
    return sum(512 * file.stat().st_blocks for file in path.rglob("*") if file.is_file())
