"""What an engine costs per trial: a sweep of trials that do next to nothing, on each engine.

    python -m benchmarks.cluster.engines --trials 1000 --nodes 4

Every trial is a run of `schematic` in its smallest form, with all the files of a run. The same
trials are also run in this process, without an engine: the difference is what an engine costs. For
Ray a cluster of several nodes is started on this machine, one CPU each. Beside it are the rates
that limit a large cluster: tasks that the driver starts, and reports that it takes, per second.
"""

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from ewc_paper.experiments.experiment import Experiment
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.experiments.schematic import Schematic
from ewc_paper.runs.engine import Engine, Event, Job, LocalEngine, run_job
from ewc_paper.runs.ray_engine import ENVIRONMENT, LOOPBACK, Mailbox, RayEngine, connect
from ewc_paper.sweeps.search import search
from ewc_paper.sweeps.sweep import Plan, Sweep
from ewc_paper.sweeps.table import trial_table

MNIST = ManyTasks.preset("quick", tasks=2, methods=("ewc",), train_samples=10_000)
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 80 * 2**20,
    "node_ip_address": "127.0.0.1",
}
TINY = Schematic(samples=4, gradient_steps=1, grid=2)


class NoEngine:
    """Does its jobs in this process, one after another."""

    def run(
        self, jobs: Sequence[Job], *, checkpoint_seconds: float
    ) -> Generator[Event, None, None]:
        for job in jobs:
            yield from run_job(job, stop=lambda: False, checkpoint_seconds=checkpoint_seconds)


def sweep_seconds(engine: Engine, trials: int) -> dict[str, float]:
    """Run a sweep of tiny trials; return how long it took, to its first end and in all."""
    plan = Plan(TINY, ("lr=log:1e-3..1",), trials, 1, grid=False)
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        sweep = Sweep(place)
        sweep.write(plan)
        start = time.perf_counter()
        for report in search(sweep, plan, engine=engine, checkpoint_seconds=30):
            if report.progress == 1:
                ends.append(time.perf_counter() - start)
        whole = time.perf_counter() - start
        at = time.perf_counter()
        trial_table(sweep, plan)
        table = time.perf_counter() - at
    # After the first quarter all workers run.
    steady = 1000 * (ends[-1] - ends[len(ends) // 4]) / (len(ends) - len(ends) // 4 - 1)
    return {"first": ends[0], "whole": whole, "ms per trial": steady, "table": table}


def busy_shares(base: Experiment, trials: int, workers: int) -> tuple[float, float]:
    """How busy the workers of the local engine are in a sweep, from the first report to the last.

    Returns:
        The share of time on a core, and the share on a core or waiting for one: on a machine with
        other work the second says whether the engine keeps its workers at work.
    """
    plan = Plan(base, ("lr=log:1e-3..0.1",), trials, 1, grid=False)
    seen: list[tuple[float, float, float]] = []

    with tempfile.TemporaryDirectory() as place:
        sweep = Sweep(place)
        sweep.write(plan)
        engine = LocalEngine(workers)
        for _ in search(sweep, plan, engine=engine, checkpoint_seconds=30):
            seen.append((time.perf_counter(), *_scheduled()))
    (start, ran, waited), (end, ran_end, waited_end) = seen[0], seen[-1]
    whole = workers * (end - start)
    on_core = (ran_end - ran) / whole
    return on_core, on_core + (waited_end - waited) / whole


def _scheduled() -> tuple[float, float]:
    """Seconds that the workers have been on a core, and waiting for one, according to Linux."""
    files = [
        file
        for worker in multiprocessing.active_children()
        for file in Path(f"/proc/{worker.pid}/task").glob("*/schedstat")
    ]
    ran, waited = zip(*(map(int, file.read_text().split()[:2]) for file in files), strict=True)
    return sum(ran) / 1e9, sum(waited) / 1e9


def mnist_sweep() -> str:
    """Run a sweep of MNIST networks with two workers; say how busy workers and cores are."""
    before = core_times()
    on_core, ready = busy_shares(MNIST, trials=8, workers=2)
    shares = [
        (busy - busy_before) / (whole - whole_before)
        for (busy_before, whole_before), (busy, whole) in zip(before, core_times(), strict=True)
    ]
    return (
        f"workers {on_core:.1%} of the time on a core, {ready:.1%} on one or waiting; "
        f"cores busy {', '.join(f'{share:.1%}' for share in shares)}, with start and end"
    )


def core_times() -> list[tuple[int, int]]:
    """For each core: the time in which something ran on it, and all time, according to Linux."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    cores = [list(map(int, line[1:9])) for line in lines if re.fullmatch(r"cpu\d+", line[0])]
    return [(sum(times) - times[3] - times[4], sum(times)) for times in cores]  # 3, 4: idle


def start_cluster(nodes: int) -> Any:
    """A Ray cluster of nodes of one CPU each, at loopback alone."""
    os.environ |= {**ENVIRONMENT, LOOPBACK: "0"}
    # Workers import what is measured from where this process has it.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(**NODE)
    return cluster


def rate(count: int, action: Callable[[int], object]) -> float:
    """How often per second something can be done."""
    start = time.perf_counter()
    action(count)
    return count / (time.perf_counter() - start)


def cluster_rates(ray: Any, count: int) -> dict[str, float]:
    """Empty tasks that are started and collected per second, and reports that are taken."""
    task = ray.remote(num_cpus=1)(_nothing)
    mailbox = ray.remote(num_cpus=0)(Mailbox).remote()
    ray.get([task.remote() for _ in range(50)] + [mailbox.put.remote([])])
    return {
        "tasks": rate(count, lambda n: ray.get([task.remote() for _ in range(n)])),
        "reports": rate(count, lambda n: ray.get([mailbox.put.remote([]) for _ in range(n)])),
    }


def _nothing() -> None:
    """An empty task."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster.engines")
    parser.add_argument("--trials", type=int, default=1000, help="tiny trials (default: 1000)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes of the cluster (default: 4)")
    given = parser.parse_args(arguments)
    if given.trials < 8 or given.nodes < 1:
        parser.error("expected at least 8 --trials and 1 --nodes")
    _say("no engine, one process", sweep_seconds(NoEngine(), min(200, given.trials)))
    _say("local, 2 workers", sweep_seconds(LocalEngine(2), given.trials))
    print("sweep of MNIST, 2 workers:", mnist_sweep())
    cluster = start_cluster(given.nodes)
    ray = connect(cluster.address)
    _say(f"ray, {given.nodes} nodes", sweep_seconds(RayEngine(cluster.address), given.trials))
    rates = cluster_rates(ray, given.trials)
    print(f"empty tasks per second: {rates['tasks']:.0f}; reports: {rates['reports']:.0f}")
    ray.shutdown()
    cluster.shutdown()


def _say(name: str, took: dict[str, float]) -> None:
    print(
        f"{name}: {took['ms per trial']:.1f} ms per trial, first result after "
        f"{took['first']:.1f} s, all after {took['whole']:.1f} s; table in {took['table']:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
