"""Whether the files of a run will fit on the disk, found out before it starts."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from ewc_paper.errors import RunError
from ewc_paper.runs.engine import Part


def check_room(path: Path, parts: Sequence[Part], workers: int) -> None:
    """Refuse a run whose parts need more room at one time than the disk of its directory has."""
    needed = bytes_at_once(parts, workers)
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free + _used(path)
    if needed > free:
        raise RunError(
            f"{path} will need {needed / 1e9:.1f} GB on disk for the replay memories of "
            f"{min(workers, len(parts))} networks at a time, but there is room for "
            f"{free / 1e9:.1f} GB: make room, or choose another --out, fewer --workers or a "
            "smaller --replay-capacity"
        )


def bytes_at_once(parts: Sequence[Part], workers: int) -> int:
    """The most that parts running at the same time can need."""
    return sum(sorted((part.disk_bytes for part in parts), reverse=True)[:workers])


def _used(path: Path) -> int:
    """What a run that is resumed has on the disk already."""
    return sum(512 * file.stat().st_blocks for file in path.rglob("*") if file.is_file())
