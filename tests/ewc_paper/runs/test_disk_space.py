"""A run that cannot fit on the disk is refused before it starts, with what it needs."""

import os
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ewc_paper.errors import RunError
from ewc_paper.runs.disk_space import bytes_at_once, check_room
from ewc_paper.runs.engine import Part

Usage = namedtuple("Usage", "total used free")


class Nothing:
    """A learner that is never made."""

    progress = 1.0

    def run(self) -> Iterator[None]:
        yield None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def parts(*gigabytes: float) -> list[Part]:
    return [
        Part(str(number), {}, lambda config: Nothing(), disk_bytes=int(1e9 * size))
        for number, size in enumerate(gigabytes)
    ]


@pytest.fixture
def ten_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, int(10e9)))


def test_the_largest_parts_may_run_at_once() -> None:
    assert bytes_at_once(parts(1, 5, 2, 4), workers=2) == 9e9
    assert bytes_at_once(parts(1, 5), workers=8) == 6e9


@pytest.mark.usefixtures("ten_free")
def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    check_room(tmp_path / "new" / "run", parts(6, 3.5, 6), workers=1)
    said = r"will need 12\.0 GB on disk for the replay memories of 2 networks .* room for 10\.0 GB"
    with pytest.raises(RunError, match=said):
        check_room(tmp_path / "new" / "run", parts(6, 3.5, 6), workers=2)
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("ten_free")
def test_what_a_resumed_run_has_already_counts_as_room(tmp_path: Path) -> None:
    file = tmp_path / "parts" / "0" / "replay"
    file.parent.mkdir(parents=True)
    file.write_bytes(os.urandom(1_000_000))
    check_room(tmp_path, parts(10.0009), workers=1)
    with pytest.raises(RunError, match="GB on disk"):
        check_room(tmp_path, parts(10.1), workers=1)
