"""TensorBoard events hold accuracies by gradient steps and scores by agent steps."""

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ewc_paper.errors import RunError
from ewc_paper.live.tensorboard import Events, NoEvents, check_installed
from ewc_paper.runs.engine import Report

ROW = {"task": 1, "task_ended": True, "accuracy": [0.975, 0.98], "loss": 0.1, "gradient_steps": 7}
TRAINED = {"kind": "train", "step": 900, "game": "CrazyClimber", "score": 12.5, "loss": 0.25}
TESTED = {"kind": "test", "step": 1000, "segment": 1, "normalized": {"Pong": 0.25, "Krull": 7.0}}


def test_events_hold_the_accuracies(tmp_path: Path) -> None:
    Events(tmp_path)(Report("ewc", 0.5, ROW))
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Scalars("ewc/accuracy_A")
    assert (event.step, round(event.value, 4)) == (7, 0.975)


def test_events_hold_scores_by_agent_steps(tmp_path: Path) -> None:
    events = Events(tmp_path)
    events(Report("plain", 0.2, TRAINED))
    events(Report("plain", 0.25, TESTED))
    stored = EventAccumulator(str(tmp_path)).Reload()
    for name, step, value in (("loss", 900, 0.25), ("score", 900, 12.5)):
        (event,) = stored.Scalars(f"plain/{name}")
        assert (event.step, event.value) == (step, value)
    (event,) = stored.Scalars("plain/normalized_Krull")
    assert (event.step, event.value) == (1000, 7.0)


def test_rows_without_scalars_and_missing_rows_are_accepted(tmp_path: Path) -> None:
    for events in (Events(tmp_path), NoEvents()):
        events(Report("ewc", 0.5, None))
        events(Report("ewc", 0.5, {"kind": "fisher", "step": 3}))
    assert EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"] == []


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(RunError, match=r"pip install 'ewc-paper\[tensorboard\]'"):
        check_installed()
