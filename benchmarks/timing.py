"""Fair timing: one thread, the ways take turns, and the best of several rounds counts.

Another program on the machine can only make a round slower, so the best round is the one that was
disturbed least; and because the ways take turns, a slow minute hits all of them.
"""

import math
import time
from collections.abc import Callable, Mapping

import torch

Way = Callable[[], object]


def one_thread() -> None:
    """Measure on one core. Denormal numbers, which are slow on some processors, count as zero."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def seconds(way: Way) -> float:
    """The time that one call takes."""
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def best_seconds(
    ways: Mapping[str, Way], rounds: int, *, limits: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The shortest time of each way over `rounds` rounds, in each of which all take their turn.

    A way named in `limits` sits out the rounds that are left once it has had so many seconds.
    """
    if rounds < 1:
        raise ValueError(f"expected rounds >= 1, got {rounds}")
    times: dict[str, list[float]] = {name: [] for name in ways}
    limits = limits or {}
    for _ in range(rounds):
        for name, way in ways.items():
            if sum(times[name]) < limits.get(name, math.inf):
                times[name].append(seconds(way))
    return {name: min(measured) for name, measured in times.items()}


def ratios(measured: Mapping[str, float]) -> dict[str, float]:
    """Every time as a multiple of the first."""
    first = next(iter(measured.values()))
    return {name: value / first for name, value in measured.items()}
