"""Workers on this machine: as many as fit, and a worker that dies costs little."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.quick_learners import make_dying, make_short

from ewc_paper.runs import local
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import ERROR, Ended, Job, Part, Report
from ewc_paper.runs.local import LocalEngine, default_workers


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of fork start at once, with torch loaded."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(local.multiprocessing, "get_context", lambda kind: fork)


def run(jobs: list[Job], workers: int = 2) -> dict[str, Ended]:
    """Run jobs and return how each of them ended."""
    ends: dict[str, Ended] = {}

    def tell(news: Report | Ended) -> None:
        if isinstance(news, Ended):
            assert news.part not in ends
            ends[news.part] = news

    LocalEngine(workers).run(jobs, checkpoint_seconds=0, tell=tell)
    return ends


def job(directory: Path, name: str, make: Any, **config: Any) -> Job:
    return Job(name, directory / name, Part(name, config, make))


def counts(directory: Path) -> list[int]:
    return [row["count"] for row in RunDirectory(directory).rows()]


@pytest.mark.usefixtures("forked")
def test_a_worker_that_dies_loses_what_is_after_its_checkpoint(tmp_path: Path) -> None:
    jobs = [job(tmp_path, f"short{number}", make_short) for number in range(3)]
    once = job(tmp_path, "once", make_dying, deaths=1, log=str(tmp_path / "log"))
    ends = run([once, *jobs])
    assert {name: end.error for name, end in ends.items()} == dict.fromkeys(ends)
    assert len(ends) == 4
    assert counts(once.directory) == list(range(1, 11))
    # Every piece was checkpointed, so that only the one that was fatal is done twice.
    assert (tmp_path / "log").read_text().split() == [str(count) for count in (1, 2, 3, 4, 5)] + [
        str(count) for count in range(5, 11)
    ]


@pytest.mark.usefixtures("forked")
def test_a_part_that_always_kills_its_worker_is_given_up_and_says_so(tmp_path: Path) -> None:
    always = job(tmp_path, "always", make_dying, deaths=99, log=str(tmp_path / "log"))
    ends = run([always, job(tmp_path, "short", make_short)], workers=1)
    assert ends["short"].error is None
    assert "worker process died 3 times" in str(ends["always"].error)
    assert "died 3 times" in (always.directory / ERROR).read_text()


def test_as_many_workers_as_cores_and_memory_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    for gigabytes, expected in ((100.0, 8), (3.5, 3), (0.1, 1)):
        monkeypatch.setattr(local, "_free_memory", lambda free=gigabytes: free * 1e9)
        assert default_workers() == expected


def test_free_memory_is_that_of_this_machine() -> None:
    assert 1e7 < local._free_memory() < 1e14


def test_signals_are_as_before_after_a_run(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run([job(tmp_path, "short", make_short)], workers=1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
