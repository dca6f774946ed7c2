"""Fair timing: one thread, all workloads take turns, and the best of several rounds counts.

Time is that of the processor in this process, so that waiting for another program does not count.
Such a program can still make a round slower, through caches and shared cores: the best round is the
one that was disturbed least. Because the workloads take turns, a slow minute affects all of them.
"""

import math
import time
from collections.abc import Callable, Mapping

import torch

Workload = Callable[[], object]


def one_thread() -> None:
    """Use one core, and take denormal numbers as zero, which are slow on some processors."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def seconds(workload: Workload) -> float:
    """Return the processor's time of one call."""
    start = time.process_time()
    workload()
    return time.process_time() - start


def best_seconds(
    workloads: Mapping[str, Workload], rounds: int, *, limits: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the shortest time of each workload.

    Args:
        workloads: by name, what to measure.
        rounds: number of rounds; each workload is called once per round.
        limits: by name, the seconds after which a workload is left out of the remaining rounds.
    """
    if rounds < 1:
        raise ValueError(f"expected rounds >= 1, got {rounds}")
    times: dict[str, list[float]] = {name: [] for name in workloads}
    limits = limits or {}
    for _ in range(rounds):
        for name, workload in workloads.items():
            if sum(times[name]) < limits.get(name, math.inf):
                times[name].append(seconds(workload))
    return {name: min(measured) for name, measured in times.items()}


def ratios(measured: Mapping[str, float]) -> dict[str, float]:
    """Return every time as a multiple of the first."""
    first = next(iter(measured.values()))
    return {name: value / first for name, value in measured.items()}
