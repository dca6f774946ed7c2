"""A node is killed once, and the work that networks had to do again is noted."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.search_on_ray import NodeKiller, main, results
from ewc_paper.experiments.many_tasks.run import ManyTasks
from ewc_paper.runs.engine import Report
from ewc_paper.sweeps.sweep import Plan, Sweep


class Cluster:
    """Notes which nodes are removed."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def remove_node(self, node: str, *, allow_graceful: bool) -> None:
        assert not allow_graceful
        self.removed.append(node)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: Iterator[float] = iter(range(100))
    monkeypatch.setattr("benchmarks.search_on_ray.time.perf_counter", lambda: next(seconds))


def test_a_node_is_killed_once_when_a_network_is_under_way(clock: None) -> None:
    cluster = Cluster()
    killer = NodeKiller(cluster, "third", at=0.4)
    for progress in (0.1, 0.3):
        killer(Report("a", progress, None))
    assert not killer.killed
    for progress in (0.4, 0.5):
        killer(Report("b", progress, None))
    assert killer.killed
    assert cluster.removed == ["third"]


def test_work_that_is_done_again_is_counted_from_the_last_checkpoint(clock: None) -> None:
    killer = NodeKiller(Cluster(), "third", at=2.0)
    for progress in (0.1, 0.2, 0.3, 0.4):  # at the seconds 0, 1, 2, 3
        killer(Report("a", progress, None))
    killer(Report("b", 0.1, None))
    killer(Report("a", 0.2, None))  # the last one before it was of second 3
    assert killer.steps_back == {"a": 2.0}


def test_results_are_metrics_and_checksums(tmp_path: Path) -> None:
    part = tmp_path / "0000-seed0" / "parts" / "ewc"
    part.mkdir(parents=True)
    (part / "metrics.jsonl").write_text("{}\n")
    save_file({"w": torch.zeros(1)}, part / "checkpoint.safetensors", {"sha256": "abc"})
    assert sorted(results(tmp_path).values()) == ["abc", "{}\n"]


def test_more_trials_than_the_sweep_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(ManyTasks.preset("quick"), ("lr=log:1e-3..1",), 2, 1, grid=False)
    Sweep(tmp_path).write(plan)
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--trials", "3"])
    assert "expected 1 to 2 --trials" in capsys.readouterr().err
