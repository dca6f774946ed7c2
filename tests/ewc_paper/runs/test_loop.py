"""What keeps files of its own is told where to keep them, and saved when they need it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.runs import run_through

from ewc_paper.errors import Interrupted
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.loop import KeepsFiles


class Counter:
    """Counts to ten."""

    def __init__(self) -> None:
        self.count = 0
        self.saved: list[int] = []
        self.loaded: int | None = None

    @property
    def progress(self) -> float:
        return self.count / 10

    def run(self) -> Iterator[dict[str, Any]]:
        while self.count < 10:
            self.count += 1
            yield {"count": self.count}

    def state_dict(self) -> dict[str, Any]:
        self.saved.append(self.count)
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = self.count = state["count"]


class Ring(Counter):
    """Counts on a file that holds four counts and must not lose one that was not saved."""

    file: Path | None = None

    def keep_in(self, directory: Path) -> None:
        assert self.loaded is None, "the files must be there before a state refers to them"
        self.file = directory / "ring"

    @property
    def needs_saving(self) -> bool:
        return self.count - max(self.saved, default=0) >= 4


def test_files_are_kept_in_the_directory_of_the_part(tmp_path: Path) -> None:
    ring = Ring()
    with pytest.raises(Interrupted):
        run_through(ring, RunDirectory(tmp_path), stop=lambda: True)
    assert ring.file == tmp_path / "ring"
    resumed = Ring()
    run_through(resumed, RunDirectory(tmp_path))
    assert (resumed.file, resumed.loaded) == (tmp_path / "ring", 1)


def test_a_checkpoint_is_written_as_soon_as_the_files_need_one(tmp_path: Path) -> None:
    ring = Ring()
    run_through(ring, RunDirectory(tmp_path), checkpoint_seconds=1e9)
    assert ring.saved == [4, 8, 10]


def test_what_keeps_no_files_is_saved_by_the_clock_alone(tmp_path: Path) -> None:
    counter = Counter()
    assert not isinstance(counter, KeepsFiles)
    run_through(counter, RunDirectory(tmp_path), checkpoint_seconds=1e9)
    assert counter.saved == [10]


def test_a_pause_comes_at_its_progress_and_the_rest_later(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for until, reached in ((0.25, 3), (0.25, 3), (0.5, 5), (1.0, 10)):
        counter = Counter()
        run_through(counter, directory, checkpoint_seconds=1e9, until=until)
        assert counter.count == reached
        assert [row["count"] for row in directory.rows()] == list(range(1, reached + 1))
        assert directory.finished() == (until == 1.0)
