"""Progress of a run in the terminal and in TensorBoard."""

import errno
import io
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from rich.console import Console
from support.runs import STEPS, make_counter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ewc_paper.cli.progress import Bars, Events, Lines, check_installed, display, follow
from ewc_paper.errors import RunError
from ewc_paper.experiments.games.run import Games
from ewc_paper.experiments.learning_curves import LearningCurves
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import LocalEngine, Part, Report, run_parts
from ewc_paper.runs.progress import read_progress

MNIST, GAMES = LearningCurves(), Games.preset("quick")
ROW = {"task": 1, "task_ended": True, "accuracy": [0.975, 0.98], "loss": 0.1, "gradient_steps": 7}

TRAINED = {"kind": "train", "step": 900, "game": "CrazyClimber", "score": 12.5, "loss": 0.25}
TESTED = {"kind": "test", "step": 1000, "segment": 1, "normalized": {"Pong": 0.25, "Krull": 7.0}}


def test_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with display(["ewc", "sgd"], Console(file=out, width=200), MNIST) as shown:
        assert isinstance(shown, Lines)
        shown.show(Report("ewc", 0.5, ROW))
        shown.show(Report("sgd", 0.1, None))
        shown.show(Report("ewc", 1.0, {**ROW, "task": 9, "accuracy": [0.9] * 10}))
    assert out.getvalue().splitlines() == [
        " 25.0 %  ewc  task B · A 97.5 B 98.0",
        " 55.0 %  ewc  task 10 · average 90.0",
    ]


def test_lines_of_games() -> None:
    out = io.StringIO()
    with display(["plain"], Console(file=out, width=200), GAMES) as shown:
        shown.show(Report("plain", 0.0, None))
        shown.show(Report("plain", 0.2, {**TRAINED, "score": None}))
        shown.show(Report("plain", 0.25, TESTED))
        shown.show(Report("plain", 1.0, TRAINED))
    assert out.getvalue().splitlines() == [
        "  0.0 %  plain",
        " 25.0 %  plain  after segment 1 · total 1.25 of 2",
        "100.0 %  plain  Crazy Climber · score 12.5",
    ]


def test_lines_on_a_terminal_that_cannot_redraw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with display(["ewc"], Console(file=out, force_terminal=True, width=200), MNIST) as shown:
        shown.show(Report("ewc", 0.5, ROW))
        assert "50.0 %" in out.getvalue()


def test_a_network_that_diverged_shows_no_accuracy() -> None:
    out = io.StringIO()
    with display(["ewc"], Console(file=out, width=200), MNIST) as shown:
        shown.show(Report("ewc", 1.0, {**ROW, "diverged": True}))
    assert out.getvalue() == "100.0 %  ewc  diverged\n"


def test_bars_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160)
    with display(["ewc", "sgd"], console, MNIST) as shown:
        assert isinstance(shown, Bars)
        shown.show(Report("ewc", 0.5, ROW))
        shown.progress.refresh()
    assert "A 97.5 B 98.0" in out.getvalue()
    assert "25 %" in out.getvalue()


ROW = {"task": 1, "task_ended": True, "accuracy": [0.975, 0.98], "loss": 0.1, "gradient_steps": 7}
TRAINED = {"kind": "train", "step": 900, "game": "CrazyClimber", "score": 12.5, "loss": 0.25}
TESTED = {"kind": "test", "step": 1000, "segment": 1, "normalized": {"Pong": 0.25, "Krull": 7.0}}


def test_events_hold_the_accuracies(tmp_path: Path) -> None:
    Events(tmp_path, MNIST).add(Report("ewc", 0.5, ROW))
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Scalars("ewc/accuracy_A")
    assert (event.step, round(event.value, 4)) == (7, 0.975)


def test_events_hold_scores_by_agent_steps(tmp_path: Path) -> None:
    events = Events(tmp_path, GAMES)
    events.add(Report("plain", 0.2, TRAINED))
    events.add(Report("plain", 0.25, TESTED))
    stored = EventAccumulator(str(tmp_path)).Reload()
    for name, step, value in (("loss", 900, 0.25), ("score", 900, 12.5)):
        (event,) = stored.Scalars(f"plain/{name}")
        assert (event.step, event.value) == (step, value)
    (event,) = stored.Scalars("plain/normalized_Krull")
    assert (event.step, event.value) == (1000, 7.0)


def test_rows_without_scalars_and_missing_rows_are_accepted(tmp_path: Path) -> None:
    events = Events(tmp_path, GAMES)
    events.add(Report("ewc", 0.5, None))
    events.add(Report("ewc", 0.5, {"kind": "fisher", "step": 3}))
    assert EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"] == []


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(RunError, match=r"pip install 'ewc-paper\[tensorboard\]'"):
        check_installed()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device.*--resume"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "Broken pipe.*--resume"),
        (ZeroDivisionError("a mistake"), "a mistake"),
        (SystemExit("enough"), "enough"),
    ],
)
def test_parts_end_if_their_reports_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    def show(self: Lines, report: Report) -> None:
        raise error

    monkeypatch.setattr(Lines, "show", show)
    run = RunDirectory(tmp_path)
    parts = [Part("counter", {}, make_counter)]
    reports = run_parts(run, parts, engine=LocalEngine(1), checkpoint_seconds=1e9)
    expected = RunError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected, match=said):
        follow(reports, ["counter"], tmp_path, MNIST)
    state = run.part("counter").load()
    assert state is not None
    assert 0 < state["count"] < STEPS
    assert not run.part("counter").finished()


def test_what_a_run_returns_is_returned_and_its_progress_kept(tmp_path: Path) -> None:
    def run() -> Generator[Report, None, str]:
        yield Report("ewc", 0.5, None)
        return "done"

    assert follow(run(), ["ewc"], tmp_path, MNIST) == "done"
    assert read_progress(tmp_path)["parts"] == {"ewc": 0.5}
