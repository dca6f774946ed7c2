"""A real Ray cluster of several nodes on this machine, at loopback alone.

Each test that needs it starts a cluster, which takes about ten seconds.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.runs import OPTIONS, make_dying, make_failing, make_logged, make_short, write_data

from benchmarks.cluster.engines import NODE, start_cluster
from benchmarks.cluster.search_on_ray import results
from ewc_paper.errors import RunError
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.runs import ray_engine
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Ended, Job, LocalEngine, Part, Report
from ewc_paper.runs.ray_engine import (
    Correspondent,
    Mailbox,
    RayEngine,
    connect,
    read_files,
    try_address,
    write_files,
)
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
    events = engine.run(jobs, checkpoint_seconds=seconds)
    return {event.part: event for event in events if isinstance(event, Ended)}


def job(directory: Path, name: str, make: Any, **config: Any) -> Job:
    return Job(name, directory / name, Part(name, config, make))


def sweep_on(engine: RayEngine | LocalEngine, path: Path, plan: Plan) -> Sweep:
    sweep = Sweep(path)
    sweep.write(plan)
    for _ in search(sweep, plan, engine=engine, checkpoint_seconds=30):
        pass
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
        "SHA256SUMS",
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


def test_parts_stop_after_checkpoints_if_nobody_listens_any_more(
    tmp_path: Path, cluster: Any
) -> None:
    slow = job(tmp_path, "slow", make_short, seconds=0.7)
    events = RayEngine(cluster.address).run([slow], checkpoint_seconds=1e9)
    next(events)
    events.close()
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


def refused_address(address: str) -> str:
    began = time.monotonic()
    with pytest.raises(RunError) as caught:
        try_address(address)
    assert time.monotonic() - began < 3
    return str(caught.value)


def test_an_address_without_a_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "PATIENCE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    said = refused_address(nobody)
    assert said.startswith(f"no Ray cluster answers at --address {nobody} (Connection refused)")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = refused_address(f"127.0.0.1:{silent.getsockname()[1]}")
    assert "no answer within" in said
    assert "no Ray cluster answers at --address no.such.host.invalid:6379" in refused_address(
        "no.such.host.invalid:6379"
    )


def test_what_answers_and_is_no_cluster_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:

        def answer() -> None:
            connected, _ = web.accept()
            with connected:
                connected.recv(1000)
                connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        said = refused_address(f"127.0.0.1:{web.getsockname()[1]}")
    assert said.endswith("is no Ray cluster")


def test_the_address_of_a_cluster_is_taken(cluster: Any) -> None:
    try_address(cluster.address)


def test_the_engine_tries_the_address_before_ray_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *given, **more: pytest.fail("Ray was asked first"))
    jobs = [job(Path("/nowhere"), "short", make_short)]
    with pytest.raises(RunError, match=r"no Ray cluster answers at --address 127.0.0.1:1 "):
        run(RayEngine("127.0.0.1:1"), jobs)


def test_what_ray_prints_by_itself_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import ray

    def init(*given: object, **more: object) -> None:
        os.write(2, b"(raylet) a line of C++\n")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    connect(None)
    os.write(2, b"a line of ours\n")
    assert capfd.readouterr().err == "a line of ours\n"


def test_tokens_that_a_killed_driver_left_are_removed(tmp_path: Path, cluster: Any) -> None:
    (tmp_path / ".token-0123").touch()
    (tmp_path / ".token-0123.stop").touch()
    run(RayEngine(cluster.address), [job(tmp_path, "short", make_short)])
    assert not list(tmp_path.glob(".token-*"))


def test_files_are_written_with_the_checkpoint_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    one = Job("a", tmp_path, Part("a", {}, make_short, temporary_files=("*.bin",)))
    given = {"checkpoint.safetensors": b"1", "metrics.jsonl": b"2", "clips/a.png": b"3"}
    given["SHA256SUMS"] = b"4"
    monkeypatch.setattr(
        "ewc_paper.runs.ray_engine.replace_file", lambda file, content: written.append(file.name)
    )
    write_files(tmp_path, given)
    assert written == ["a.png", "metrics.jsonl", "checkpoint.safetensors", "SHA256SUMS"]
    monkeypatch.undo()
    write_files(tmp_path, given)
    for name in ("lock", "previous.safetensors", "replay.bin"):
        (tmp_path / name).touch()
    assert read_files(tmp_path, one) == given
    assert read_files(tmp_path / "nowhere", one) == {}
