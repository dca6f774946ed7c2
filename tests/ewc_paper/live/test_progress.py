"""Progress is bars on a terminal and lines elsewhere, with the accuracies in both."""

import io

import pytest
from rich.console import Console

from ewc_paper.live.progress import Bars, Lines, display
from ewc_paper.runs.engine import Report

ROW = {"task": 1, "task_ended": True, "accuracy": [0.975, 0.98], "loss": 0.1, "gradient_steps": 7}

TRAINED = {"kind": "train", "step": 900, "game": "CrazyClimber", "score": 12.5, "loss": 0.25}
TESTED = {"kind": "test", "step": 1000, "segment": 1, "normalized": {"Pong": 0.25, "Krull": 7.0}}


def test_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with display(["ewc", "sgd"], Console(file=out, width=200)) as shown:
        assert isinstance(shown, Lines)
        shown(Report("ewc", 0.5, ROW))
        shown(Report("sgd", 0.1, None))
        shown(Report("ewc", 1.0, {**ROW, "task": 9, "accuracy": [0.9] * 10}))
    assert out.getvalue().splitlines() == [
        " 25.0 %  ewc  task B · A 97.5 B 98.0",
        " 55.0 %  ewc  task 10 · average 90.0",
    ]


def test_lines_of_games() -> None:
    out = io.StringIO()
    with display(["plain"], Console(file=out, width=200)) as shown:
        shown(Report("plain", 0.0, None))
        shown(Report("plain", 0.2, {**TRAINED, "score": None}))
        shown(Report("plain", 0.25, TESTED))
        shown(Report("plain", 1.0, TRAINED))
    assert out.getvalue().splitlines() == [
        "  0.0 %  plain",
        " 25.0 %  plain  after segment 1 · total 1.25 of 2",
        "100.0 %  plain  Crazy Climber · score 12.5",
    ]


def test_lines_on_a_terminal_that_cannot_redraw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with display(["ewc"], Console(file=out, force_terminal=True, width=200)) as shown:
        shown(Report("ewc", 0.5, ROW))
        assert "50.0 %" in out.getvalue()


def test_a_network_that_diverged_shows_no_accuracy() -> None:
    out = io.StringIO()
    with display(["ewc"], Console(file=out, width=200)) as shown:
        shown(Report("ewc", 1.0, {**ROW, "diverged": True}))
    assert out.getvalue() == "100.0 %  ewc  diverged\n"


def test_bars_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160)
    with display(["ewc", "sgd"], console) as shown:
        assert isinstance(shown, Bars)
        shown(Report("ewc", 0.5, ROW))
        shown.progress.refresh()
    assert "A 97.5 B 98.0" in out.getvalue()
    assert "25 %" in out.getvalue()
