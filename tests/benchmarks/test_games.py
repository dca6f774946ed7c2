"""Our agent plays and learns Pong step by step, without tests in between."""

import pytest

from benchmarks import games


def test_speeds_are_multiples_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games, "ours", lambda **options: lambda: None)
    monkeypatch.setattr(
        games, "best_seconds", lambda workloads, rounds: dict.fromkeys(workloads, 2.0)
    )
    (table,) = games.tables(ours_only=True)
    assert [row["steps per second"] for row in table.rows] == [games.STEPS / 2] * len(table.rows)
    assert all(row["multiple"] == 1.0 for row in table.rows)
    assert table.notes == ["multiple: of the speed of ewc, single Q."]


def test_our_agent_plays_after_its_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games, "WARM_UP", 16)
    play = games.ours(network="small", size=42, min_history=8)
    play(8)
