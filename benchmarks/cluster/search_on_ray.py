"""Trials of a sweep that the local engine has finished, again on a Ray cluster that loses a node.

    python -m benchmarks.cluster.search_on_ray runs/many-tasks/search --trials 6 --nodes 3

One node is killed while it trains. The command says whether all metrics and checkpoints are those
of the local engine bit for bit, and how far networks had to go back: at most to their last
checkpoint.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from benchmarks.cluster.engines import NODE, start_cluster
from ewc_paper.runs.engine import Report
from ewc_paper.runs.ray_engine import RayEngine, connect
from ewc_paper.sweeps.search import search
from ewc_paper.sweeps.sweep import Sweep

CHECKPOINT_SECONDS = 5.0


class NodeKiller:
    """Takes the reports of networks, and kills a node once one of them is well under way.

    Args:
        cluster: the Ray cluster.
        node: the node to kill.
        at: the progress of a network at which it is killed.
    """

    def __init__(self, cluster: Any, node: Any, at: float) -> None:
        self._cluster, self._node, self._at = cluster, node, at
        self._seen: dict[str, list[tuple[float, float]]] = {}  # by network: times and progress
        self.steps_back: dict[str, float] = {}  # by network: seconds of work done again
        self.killed = False

    def see(self, report: Report) -> None:
        now, seen = time.perf_counter(), self._seen.setdefault(report.part, [])
        if seen and report.progress < seen[-1][1]:
            before = [at for at, progress in seen if progress <= report.progress]
            self.steps_back[report.part] = seen[-1][0] - (before[-1] if before else seen[0][0])
        seen.append((now, report.progress))
        if not self.killed and report.progress >= self._at:
            self.killed = True
            self._cluster.remove_node(self._node, allow_graceful=False)


def results(directory: Path) -> dict[str, str]:
    """The metrics of all networks, and their checkpoints as checksums, by file."""
    contents = {}
    for file in sorted(directory.rglob("metrics.jsonl")):
        contents[str(file.relative_to(directory))] = file.read_text()
    for file in sorted(directory.rglob("checkpoint.safetensors")):
        with safe_open(file, framework="pt") as opened:
            contents[str(file.relative_to(directory))] = opened.metadata()["sha256"]
    return contents


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the trials on the cluster, and compare."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.search_on_ray",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sweep", type=Path, help="a sweep that the local engine has finished")
    parser.add_argument("--trials", type=int, default=6, help="its first trials (default: 6)")
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the cluster (default: 3)")
    parser.add_argument("--kill-at", type=float, default=0.4, help="progress (default: 0.4)")
    given = parser.parse_args(arguments)
    plan = Sweep(given.sweep).read()
    if not 1 <= given.trials <= plan.trials or given.nodes < 2:
        parser.error(f"expected 1 to {plan.trials} --trials and at least 2 --nodes")
    cluster = start_cluster(given.nodes - 1)
    killer = NodeKiller(cluster, cluster.add_node(**NODE), given.kill_at)
    ray = connect(cluster.address)
    with tempfile.TemporaryDirectory() as place:
        sweep, plan = Sweep(place), replace(plan, trials=given.trials, best_seeds=0)
        sweep.write(plan)
        engine = RayEngine(cluster.address)
        for report in search(sweep, plan, engine=engine, checkpoint_seconds=CHECKPOINT_SECONDS):
            killer.see(report)
        on_ray = results(sweep.path / "trials")
    ray.shutdown()
    cluster.shutdown()
    trials = {
        f"{trial:04d}-seed{seed}" for trial in range(plan.trials) for seed in plan.search_seeds
    }
    local = results(given.sweep / "trials")
    local = {name: value for name, value in local.items() if name.split("/")[0] in trials}
    different = [
        name for name in local.keys() | on_ray.keys() if local.get(name) != on_ray.get(name)
    ]
    print(f"{len(local)} files of {plan.trials} trials, {len(different)} different", *different)
    print("a node was killed" if killer.killed else "no node was killed: lower --kill-at")
    for part, seconds in killer.steps_back.items():
        print(f"{part}: did {seconds:.1f} s again (a checkpoint every {CHECKPOINT_SECONDS:g} s)")
    if different or not killer.killed or not killer.steps_back:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
