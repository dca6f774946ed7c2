"""Workloads take turns, and the best round counts."""

import time
from functools import partial

import pytest

from benchmarks.timing import best_seconds, ratios, seconds


class Clock:
    """A clock that advances only when something sleeps."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "process_time", lambda: clock.now)
    return clock


def test_a_call_is_timed(clock: Clock) -> None:
    assert seconds(partial(clock.sleep, 1.5)) == 1.5


def test_workloads_take_turns_and_the_best_round_counts(clock: Clock) -> None:
    durations = {"short": iter([3.0, 1.0, 2.0]), "long": iter([6.0, 8.0, 4.0])}
    turns = []

    def workload(name: str) -> None:
        turns.append(name)
        clock.sleep(next(durations[name]))

    best = best_seconds({name: partial(workload, name) for name in durations}, rounds=3)
    assert turns == ["short", "long"] * 3
    assert best == {"short": 1.0, "long": 4.0}


def test_a_workload_over_its_limit_is_left_out_of_the_remaining_rounds(clock: Clock) -> None:
    turns = []

    def workload(name: str, seconds: float) -> None:
        turns.append(name)
        clock.sleep(seconds)

    workloads = {"slow": partial(workload, "slow", 2.0), "fast": partial(workload, "fast", 0.5)}
    best_seconds(workloads, rounds=5, limits={"slow": 3.0})
    assert (turns.count("slow"), turns.count("fast")) == (2, 5)


def test_no_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds >= 1, got 0"):
        best_seconds({"workload": lambda: None}, rounds=0)


def test_ratios_are_to_the_first() -> None:
    assert ratios({"plain": 2.0, "fisher": 3.0}) == {"plain": 1.0, "fisher": 1.5}
