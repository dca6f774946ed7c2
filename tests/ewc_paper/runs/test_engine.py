"""Parts stop together when one fails or cannot be shown, and a kill leaves nothing half done."""

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from support.quick_learners import STEPS, make_counter, make_failing, make_short

from ewc_paper.errors import RunError
from ewc_paper.runs.checkpoint import says_finished
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Job, Part, Report, perform, run_parts
from ewc_paper.runs.local import LocalEngine


def ignore(report: Report) -> None:
    pass


def stopped_at(run: RunDirectory, name: str) -> int:
    """How far a part has come, whose checkpoint must be there."""
    state = run.part(name).load()
    assert state is not None
    assert not run.part(name).finished()
    count: int = state["count"]
    return count


def test_a_part_that_failed_is_noticed_while_others_report_all_the_time(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    after = {"after": str(run.part("counter").path / "metrics.jsonl")}
    parts = [Part("counter", {}, make_counter), Part("failing", after, make_failing)]
    with pytest.raises(RunError, match="three is too much"):
        run_parts(run, parts, engine=LocalEngine(2), checkpoint_seconds=1e9, show=ignore)
    assert stopped_at(run, "counter") < STEPS


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
    tmp_path: Path, error: BaseException, said: str
) -> None:
    def show(report: Report) -> None:
        raise error

    run = RunDirectory(tmp_path)
    parts = [Part("counter", {}, make_counter)]
    expected = RunError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected, match=said):
        run_parts(run, parts, engine=LocalEngine(1), checkpoint_seconds=1e9, show=show)
    assert stopped_at(run, "counter") < STEPS


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


def perform_short(path: Path) -> None:
    job = Job("short", path, Part("short", {}, make_short))
    perform(job, report=ignore, stop=lambda: False, checkpoint_seconds=0)


def test_killed_before_any_rename_a_part_is_finished_once_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace
    for point in itertools.count(1):
        left = itertools.count(point - 1, -1)

        def killing(*files: Any, left: Any = left) -> None:
            if next(left) == 0:
                raise Killed
            rename(*files)

        monkeypatch.setattr(os, "replace", killing)
        try:
            perform_short(tmp_path / str(point))
        except Killed:
            monkeypatch.setattr(os, "replace", rename)
            perform_short(tmp_path / str(point))
        else:
            break
        assert says_finished(tmp_path / str(point)), f"killed before rename {point}"
    assert point > 20, "one config, ten checkpoints and the last one"
