"""A real Ray cluster of several nodes on this machine, at loopback alone.

Each test that needs it starts a cluster, which takes about ten seconds.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.quick_learners import make_dying, make_failing, make_logged, make_short
from support.tiny import OPTIONS, write_data

from benchmarks.engines import NODE, start_cluster
from benchmarks.search_on_ray import results
from ewc_paper.errors import RunError
from ewc_paper.experiments.many_tasks.run import ManyTasks
from ewc_paper.runs import ray_engine
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Ended, Job, Part, Report
from ewc_paper.runs.local import LocalEngine
from ewc_paper.runs.ray_engine import Correspondent, Mailbox, RayEngine
from ewc_paper.sweeps.search import search
from ewc_paper.sweeps.sweep import Plan, Sweep


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each; a test may add others."""
    cluster = start_cluster(nodes=2)
    import ray

    yield cluster
    ray.shutdown()
    cluster.shutdown()


def run(engine: RayEngine | LocalEngine, jobs: list[Job], seconds: float = 0) -> dict[str, Ended]:
    ends: dict[str, Ended] = {}

    def tell(news: Report | Ended) -> None:
        if isinstance(news, Ended):
            ends[news.part] = news

    engine.run(jobs, checkpoint_seconds=seconds, tell=tell)
    return ends


def job(directory: Path, name: str, make: Any, **config: Any) -> Job:
    return Job(name, directory / name, Part(name, config, make))


def sweep_on(engine: RayEngine | LocalEngine, path: Path, plan: Plan) -> Sweep:
    sweep = Sweep(path)
    sweep.write(plan)
    search(sweep, plan, engine=engine, checkpoint_seconds=30, show=lambda report: None)
    return sweep


def test_both_engines_give_the_same_bit_for_bit(tmp_path: Path, cluster: Any) -> None:
    tiny = OPTIONS | {"data": str(write_data(tmp_path / "data")), "validation_samples": 40}
    base = ManyTasks.preset("quick", **tiny, methods=("ewc", "dropout"), dropout_epochs=2)
    over = ("lr=log:1e-3..1", "dropout_lr=log:1e-3..1", "width=4..16")
    plan = Plan(base, over, 2, 1, grid=False)
    local = sweep_on(LocalEngine(2), tmp_path / "local", plan)
    on_ray = sweep_on(RayEngine(cluster.address), tmp_path / "ray", plan)
    expected = results(local.path)
    assert len(expected) == 2 * 2 * 2  # metrics and checkpoint of two methods in two trials
    assert results(on_ray.path) == expected


def test_a_node_that_dies_loses_nothing_that_was_checkpointed(tmp_path: Path, cluster: Any) -> None:
    log = tmp_path / "log"
    log.touch()
    jobs = [
        job(
            tmp_path / "run",
            f"part{number}",
            make_logged,
            log=str(log),
            label=str(number),
            seconds=0.3,
        )
        for number in range(5)
    ]
    third = cluster.add_node(**NODE)
    (raylet,) = third.all_processes["raylet"]

    def kill_in_the_middle_of_a_part() -> None:
        while f" 2 {raylet.process.pid}\n" not in log.read_text():
            time.sleep(0.05)
        cluster.remove_node(third, allow_graceful=False)

    killer = threading.Thread(target=kill_in_the_middle_of_a_part)
    killer.start()
    ends = run(RayEngine(cluster.address), jobs)
    killer.join()
    assert [end.error for end in ends.values()] == [None] * 5
    done = log.read_text().splitlines()
    for number, one in enumerate(jobs):
        assert [row["count"] for row in RunDirectory(one.directory).rows()] == list(range(1, 11))
        pieces = [int(line.split()[1]) for line in done if line.split()[0] == str(number)]
        assert pieces == sorted(pieces)  # never back behind a checkpoint
    # A node runs one part at a time, and a part is saved after every piece.
    assert len(done) <= 5 * 10 + 1
    assert len(done) >= 5 * 10


def test_without_shared_storage_files_come_back(tmp_path: Path, cluster: Any) -> None:
    engine = RayEngine(cluster.address, shared=False)
    ends = run(engine, [job(tmp_path / "ray", "short", make_short)])
    assert ends["short"].error is None
    run(LocalEngine(1), [job(tmp_path / "local", "short", make_short)])
    assert results(tmp_path / "ray") == results(tmp_path / "local") != {}
    directory = RunDirectory(tmp_path / "ray" / "short")
    directory.check()
    assert directory.finished()
    assert sorted(file.name for file in directory.path.iterdir()) == [
        "checkpoint.safetensors",
        "config.json",
        "metrics.jsonl",
    ]


def test_failures_are_told_and_do_not_end_the_others(tmp_path: Path, cluster: Any) -> None:
    jobs = [
        job(tmp_path, "failing", make_failing),
        job(tmp_path, "dying", make_dying, deaths=99, log=str(tmp_path / "log")),
        job(tmp_path, "short", make_short),
    ]
    ends = run(RayEngine(cluster.address), jobs)
    assert "three is too much" in str(ends["failing"].error)
    assert "three is too much" in (tmp_path / "failing" / "error.txt").read_text()
    assert "worker process died 3 times" in str(ends["dying"].error)
    assert ends["short"].error is None
    assert not list(tmp_path.glob(".token*"))


def test_parts_stop_after_checkpoints_if_their_reports_cannot_be_shown(
    tmp_path: Path, cluster: Any
) -> None:
    def tell(news: Report | Ended) -> None:
        raise RunError("enough")

    slow = job(tmp_path, "slow", make_short, seconds=0.7)
    with pytest.raises(RunError, match="enough"):
        RayEngine(cluster.address).run([slow], checkpoint_seconds=1e9, tell=tell)
    state = RunDirectory(slow.directory).load()
    assert state is not None
    assert 0 < state["count"] < 10


def test_nothing_listens_beyond_loopback_and_there_is_no_dashboard(cluster: Any) -> None:
    import ray

    assert cluster.address.startswith("127.0.0.1:")
    if not ray.is_initialized():
        run(RayEngine(cluster.address), [])
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}


def test_rows_are_all_sent_and_progress_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[list[Report]] = []
    now, answer = [0.0], [None]

    def put(reports: list[Report]) -> Callable[[], bool | None]:
        sent.append(reports)
        return lambda: answer[0]

    monkeypatch.setattr(ray_engine.time, "monotonic", lambda: now[0])
    correspondent = Correspondent(put, every_seconds=10.0)
    row = {"loss": 1.0}
    for progress, said in ((0.1, None), (0.2, row), (0.3, None), (0.4, None)):
        correspondent.report(Report("part", progress, said))
    assert sent == []
    now[0] = 10.0
    correspondent.report(Report("part", 0.5, None))
    assert sent == [[Report("part", 0.2, row), Report("part", 0.5, None)]]
    assert not correspondent.stopping()  # no answer yet
    answer[0] = True  # type: ignore[call-overload]
    assert correspondent.stopping()
    correspondent.report(Report("part", 0.6, None))
    assert correspondent.waiting == [Report("part", 0.6, None)]


def test_the_mailbox_keeps_reports_until_they_are_taken() -> None:
    mailbox = Mailbox()
    report = Report("part", 0.5, None)
    assert not mailbox.put([report])
    assert mailbox.take(stopping=True) == [report]
    assert mailbox.take(stopping=True) == []
    assert mailbox.put([])


def test_an_address_without_a_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(*given: Any, **more: Any) -> None:
        raise ConnectionError("nobody answers\nat all")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    jobs = [job(Path("/nowhere"), "short", make_short)]
    with pytest.raises(RunError, match=r"cannot connect to Ray at --address 127.0.0.1:1 \(nobody"):
        run(RayEngine("127.0.0.1:1"), jobs)
