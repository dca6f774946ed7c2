"""A run that does not fit on the disk is refused before it starts, with the space it needs."""

import os
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ewc_paper.errors import RunError
from ewc_paper.runs.disk_space import check_disk_space, largest_total_bytes
from ewc_paper.runs.engine import Part

Usage = namedtuple("Usage", "total used free")


class Nothing:
    """Something to run that is never created."""

    progress = 1.0

    def run(self) -> Iterator[None]:
        yield None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def parts(*gigabytes: float) -> list[Part]:
    return [
        Part(
            str(number),
            {},
            lambda config: Nothing(),
            disk_bytes=int(1e9 * size),
            disk_advice="a smaller --cache",
        )
        for number, size in enumerate(gigabytes)
    ]


@pytest.fixture
def ten_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, int(10e9)))


def test_the_largest_parts_may_run_at_once() -> None:
    assert largest_total_bytes(parts(1, 5, 2, 4), workers=2) == 9e9
    assert largest_total_bytes(parts(1, 5), workers=8) == 6e9


@pytest.mark.usefixtures("ten_free")
def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    check_disk_space(tmp_path / "new" / "run", parts(6, 3.5, 6), workers=1)
    said = (
        r"will need 12\.0 GB of disk space for the files of 2 parts .* only 10\.0 GB are free: "
        r"free disk space, choose another --out, fewer --workers or a smaller --cache"
    )
    with pytest.raises(RunError, match=said):
        check_disk_space(tmp_path / "new" / "run", parts(6, 3.5, 6), workers=2)
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("ten_free")
def test_what_a_resumed_run_uses_already_counts_as_free(tmp_path: Path) -> None:
    file = tmp_path / "parts" / "0" / "cache"
    file.parent.mkdir(parents=True)
    file.write_bytes(os.urandom(1_000_000))
    check_disk_space(tmp_path, parts(10.0009), workers=1)
    with pytest.raises(RunError, match="GB of disk space"):
        check_disk_space(tmp_path, parts(10.1), workers=1)
