"""What engines cost, what a lost node costs, and what the whole program would take."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.cluster import engines, program, search_on_ray
from benchmarks.cluster.program import Costs, Network, makespan_hours, weights
from benchmarks.cluster.search_on_ray import NodeKiller
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.experiments.schematic import Schematic
from ewc_paper.runs.engine import Report
from ewc_paper.sweeps.sweep import Plan, Sweep


def test_a_sweep_of_tiny_trials_is_timed() -> None:
    took = engines.sweep_seconds(engines.NoEngine(), trials=8)
    assert 0 < took["first"] < took["whole"]
    assert took["ms per trial"] > 0
    assert took["table"] > 0
    assert 9 < engines.rate(1, lambda count: time.sleep(0.1)) <= 10


def test_workers_that_compute_are_seen_busy() -> None:
    base = Schematic(gradient_steps=2000, grid=200)
    on_core, ready = engines.busy_shares(base, trials=2, workers=1)
    assert 0 < on_core <= ready < 1.2


def test_a_core_that_computes_is_seen_busy() -> None:
    before, end = engines.core_times(), time.perf_counter() + 0.5
    while time.perf_counter() < end:
        pass
    after = engines.core_times()
    spent = [now[0] - then[0] for then, now in zip(before, after, strict=True)]
    assert sum(spent) >= 30  # hundredths of a second
    assert all(busy <= whole for busy, whole in after)


class Cluster:
    """Notes which nodes are removed."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def remove_node(self, node: str, *, allow_graceful: bool) -> None:
        assert not allow_graceful
        self.removed.append(node)


def test_a_node_is_killed_once_and_work_done_again_counts_from_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds: Iterator[float] = iter(range(100))
    monkeypatch.setattr(search_on_ray.time, "perf_counter", lambda: next(seconds))
    cluster = Cluster()
    killer = NodeKiller(cluster, "third", at=0.4)
    for progress in (0.1, 0.2, 0.3):  # at the seconds 0, 1, 2
        killer.see(Report("a", progress, None))
    assert not killer.killed
    for progress in (0.4, 0.5):
        killer.see(Report("b", progress, None))
    assert killer.killed
    assert cluster.removed == ["third"]
    killer.see(Report("a", 0.2, None))  # its last report was of second 2
    assert killer.steps_back == {"a": 1.0}


def test_results_are_metrics_and_checksums(tmp_path: Path) -> None:
    part = tmp_path / "0000-seed0" / "parts" / "ewc"
    part.mkdir(parents=True)
    (part / "metrics.jsonl").write_text("{}\n")
    save_file({"w": torch.zeros(1)}, part / "checkpoint.safetensors", {"sha256": "abc"})
    assert sorted(search_on_ray.results(tmp_path).values()) == ["abc", "{}\n"]


def test_nonsense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        engines.main(["--trials", "3"])
    assert "at least 8 --trials" in capsys.readouterr().err
    plan = Plan(ManyTasks.preset("quick"), ("lr=log:1e-3..1",), 2, 1, grid=False)
    Sweep(tmp_path).write(plan)
    with pytest.raises(SystemExit, match="2"):
        search_on_ray.main([str(tmp_path), "--trials", "3"])
    assert "expected 1 to 2 --trials" in capsys.readouterr().err


class Flat(Costs):
    """A step costs a second for every weight of 2x400."""

    def step(self, width: int, layers: int, batch: int) -> float:
        return weights(width, layers) / weights(400, 2)


def test_hours_are_steps_times_their_cost() -> None:
    (part,) = ManyTasks.preset("paper", methods=("ewc",), width=400, epochs=2, tasks=3).parts()
    assert Flat().hours(part) == pytest.approx(3 * 2 * 55_000 / 10 / 3600)
    assert program.step_seconds(16, 1, 4, steps=3) > 0
    costs = Costs()
    costs.measured[400, 2, 10] = 1.0
    assert costs.step(400, 2, 10) == 1.0
    assert costs.step(500, 2, 10) == pytest.approx(weights(500, 2) / weights(400, 2))


def test_the_program_has_the_paper_s_networks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    networks = program.program(Flat())
    count = {name: sum(n.experiment == name for n in networks) for name in ("many-tasks", "games")}
    assert count == {"many-tasks": 50 * 3 + 2 * 10 * 3, "games": 196}
    assert len(program.game_networks()) == 197
    monkeypatch.setattr(program, "Costs", Flat)
    program.main()
    assert "1000 nodes of 16 CPUs" in capsys.readouterr().out


def test_a_cluster_ends_with_its_longest_network() -> None:
    networks = [Network("a", hours, 1.0) for hours in (5.0, 3.0, 2.0, 2.0)]
    assert makespan_hours(networks, 1) == 12.0
    assert makespan_hours(networks, 2) == 7.0  # 5 + 2 beside 3 + 2
    assert makespan_hours(networks, 1000 * program.CPUS_PER_NODE) == 5.0
