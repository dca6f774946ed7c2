"""How recognizers are judged, and what is shown to them."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recognition import Log, describe, drawn, judge, main, rounds, watch
from benchmarks.recorded_frames import RecordedFrames


class Told:
    """A recognizer that says what the first pixel says, and merges 3 into 1 at the first 9."""

    def __init__(self) -> None:
        self.merged: list[tuple[int, int]] = []

    def observe(self, frame: np.ndarray) -> int:
        self.merged = [(3, 1)] if frame[0, 0] == 9 else []
        return 1 if frame[0, 0] == 9 else int(frame[0, 0])


def frames_of(*tasks: int) -> np.ndarray:
    return np.array(tasks, dtype=np.uint8)[:, None, None]


def test_tasks_merges_and_mistakes_are_counted() -> None:
    plan = [("A", (0, 0, 0, 3)), ("B", (0, 1, 1, 1, 1)), ("A", (1, 0, 0, 9)), ("C", (0, 0, 0, 0))]
    log = watch(Told(), [(game, frames_of(*tasks)) for game, tasks in plan])
    assert log.merged == {3: 1}
    outcome = judge(log)
    assert outcome.right == {"A": 5 / 8, "B": 4 / 5, "C": 0}
    assert outcome.tasks == {"A": 1, "B": 1}
    assert outcome.mistakes == {("A", "B"): 3, ("B", "A"): 1, ("C", "A"): 4}
    assert outcome.delays == [4, 4, 16]


def test_a_perfect_run_has_no_worst_pair() -> None:
    text = describe([judge(Log([("A", [0] * 4), ("B", [1] * 4)], seconds=[1, 0.002]))])
    assert "right 100.00 %, contexts per game 1.00, delay 0.0 agent steps, 0.50 ms" in text
    assert text.endswith("worst pair none taken for none (0 observations)")


def test_the_worst_are_named() -> None:
    tasks = [("A", [0] * 8), ("B", [0, 0, 1, 1, 1, 1, 1, 2])]
    text = describe([judge(Log(tasks, seconds=[0, 0]))])
    assert "right 87.50 %, contexts per game 1.50, delay 8.0 agent steps" in text
    assert "worst game B (75.00 %)" in text
    assert "most contexts B (2)" in text
    assert "worst pair B taken for A (2 observations)" in text


def test_sets_are_drawn_by_their_number() -> None:
    games = [f"game {number}" for number in range(20)]
    assert drawn(games, 5, 1) == drawn(games[::-1], 5, 1) != drawn(games, 5, 2)
    assert len(set(drawn(games, 5, 1))) == 5


class Recorded(RecordedFrames):
    def visit(self, game: str, number: int, agent_steps: int) -> np.ndarray:
        return np.array([number, agent_steps])


def test_the_first_visits_may_be_longer(tmp_path: Path) -> None:
    shown = list(rounds(Recorded(tmp_path, "random"), ["A", "B", "C"], 60_000, seed=0))
    assert sorted(game for game, _ in shown[:3]) == sorted(game for game, _ in shown[3:])
    assert [list(frames) for _, frames in shown] == [[0, 60_000]] * 3 + [[1, 2_000]] * 3


def test_the_command_prints_each_set_and_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)

    def visit(frames: RecordedFrames, game: str, number: int, agent_steps: int) -> np.ndarray:
        typical = np.random.default_rng(list(game.encode())).integers(0, 256, (1, 12, 12), np.uint8)
        noise = random.integers(0, 256, (agent_steps // 100, 12, 12), dtype=np.uint8)
        return np.where(random.random(noise.shape) < 0.1, noise, typical)

    monkeypatch.setattr(RecordedFrames, "visit", visit)
    monkeypatch.setattr(
        sys, "argv", ["recognition", "--games", "3", "--sets", "2", "--frames", str(tmp_path)]
    )
    main()
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [line.split(":")[0] for line in lines] == ["set 0", "set 1", "all"]
    assert "contexts per game 1.00" in lines[-1]
