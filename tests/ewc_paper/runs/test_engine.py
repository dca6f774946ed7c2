"""Jobs, what a worker does with them, the local engine, and the disk space they need."""

import itertools
import multiprocessing
import os
import shutil
import signal
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import STEPS, make_counter, make_dying, make_failing, make_short

from ewc_paper.errors import RunError
from ewc_paper.runs import engine
from ewc_paper.runs.checkpoint import says_finished
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import (
    ERROR,
    Ended,
    Job,
    LocalEngine,
    Part,
    check_disk_space,
    default_workers,
    largest_total_bytes,
    run_job,
    run_parts,
)


def stopped_at(run: RunDirectory, name: str) -> int:
    """How far a part has come, whose checkpoint must be there."""
    state = run.part(name).load()
    assert state is not None
    assert not run.part(name).finished()
    count: int = state["count"]
    return count


def test_a_part_that_failed_is_noticed_while_others_report_all_the_time(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    after = {"after": str(run.part("counter").path / "metrics.jsonl")}
    parts = [Part("counter", {}, make_counter), Part("failing", after, make_failing)]
    with pytest.raises(RunError, match="three is too much"):
        for _ in run_parts(run, parts, engine=LocalEngine(2), checkpoint_seconds=1e9):
            pass
    assert stopped_at(run, "counter") < STEPS


def test_parts_stop_after_checkpoints_if_nobody_listens_any_more(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    parts = [Part("counter", {}, make_counter)]
    reports = run_parts(run, parts, engine=LocalEngine(1), checkpoint_seconds=1e9)
    next(reports)
    reports.close()
    assert stopped_at(run, "counter") < STEPS


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


def run_short(path: Path) -> None:
    job = Job("short", path, Part("short", {}, make_short))
    for _ in run_job(job, stop=lambda: False, checkpoint_seconds=0):
        pass


def test_killed_before_any_rename_a_part_is_finished_once_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace
    for point in itertools.count(1):
        left = itertools.count(point - 1, -1)

        def killing(*files: Any, left: Any = left) -> None:
            if next(left) == 0:
                raise Killed
            rename(*files)

        monkeypatch.setattr(os, "replace", killing)
        try:
            run_short(tmp_path / str(point))
        except Killed:
            monkeypatch.setattr(os, "replace", rename)
            run_short(tmp_path / str(point))
        else:
            break
        assert says_finished(tmp_path / str(point)), f"killed before rename {point}"
    assert point > 20, "one config, ten checkpoints and the last one"


def test_denormals_are_zero_for_the_parts_that_ask_for_it_alone(tmp_path: Path) -> None:
    zero = []

    def make(config: dict[str, Any]) -> Any:
        zero.append(bool((torch.tensor([1e-38]) * 0.1 == 0).all()))
        return make_short({})

    for number, flush in enumerate((True, False)):
        part = Part("short", {}, make, flush_denormals=flush)
        job = Job("short", tmp_path / str(number), part)
        for _ in run_job(job, stop=lambda: False, checkpoint_seconds=0):
            pass
    assert zero == [True, False]


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of fork start at once, with torch loaded."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(engine.multiprocessing, "get_context", lambda kind: fork)


def run(jobs: list[Job], workers: int = 2) -> dict[str, Ended]:
    """Run jobs and return how each of them ended."""
    ends: dict[str, Ended] = {}
    for event in LocalEngine(workers).run(jobs, checkpoint_seconds=0):
        if isinstance(event, Ended):
            assert event.part not in ends
            ends[event.part] = event
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
        monkeypatch.setattr(engine, "_free_memory", lambda free=gigabytes: free * 1e9)
        assert default_workers() == expected


def test_free_memory_is_that_of_this_machine() -> None:
    assert 1e7 < engine._free_memory() < 1e14


def test_signals_are_as_before_after_a_run(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run([job(tmp_path, "short", make_short)], workers=1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


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
