"""The overhead of engines is measured on sweeps that come to their end."""

import time

import pytest

from benchmarks.engines import NoEngine, busy_shares, core_times, main, rate, sweep_seconds
from ewc_paper.experiments.schematic.run import Schematic


def test_a_sweep_of_tiny_trials_is_timed() -> None:
    took = sweep_seconds(NoEngine(), trials=8)
    assert 0 < took["first"] < took["whole"]
    assert took["ms per trial"] > 0
    assert took["table"] > 0


def test_a_rate_is_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0])
    monkeypatch.setattr("benchmarks.engines.time.perf_counter", lambda: next(clock))
    assert rate(100, lambda count: None) == 50.0


def test_too_few_trials_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--trials", "3"])
    assert "at least 8 --trials" in capsys.readouterr().err


def test_workers_that_compute_are_seen_busy() -> None:
    on_core, ready = busy_shares(Schematic(gradient_steps=2000, grid=200), trials=2, workers=1)
    assert 0 < on_core <= ready < 1.2


def test_a_core_that_computes_is_seen_busy() -> None:
    before, end = core_times(), time.perf_counter() + 0.5
    while time.perf_counter() < end:
        pass
    after = core_times()
    spent = [now[0] - then[0] for then, now in zip(before, after, strict=True)]
    assert sum(spent) >= 30  # hundredths of a second
    assert all(busy <= whole for busy, whole in after)
