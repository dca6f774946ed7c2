"""The progress of a run: bars with the remaining time on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ewc_paper.experiments.games.data import clipped_total
from ewc_paper.figures.names import game_name, task_name
from ewc_paper.runs.directory import MetricsRow
from ewc_paper.runs.engine import Report

LINE_SECONDS = 30.0  # at most this time between two lines


def note(report: Report) -> str:
    """Summarize the row of a report in a few words; empty for rows of other kinds."""
    row = report.row or {}
    if row.get("diverged"):
        return "diverged"
    if row.get("accuracy"):
        return accuracies(row)
    if row.get("kind") == "test":
        total = clipped_total(row["normalized"].values())
        return f"after segment {row['segment']} · total {total:.2f} of {len(row['normalized'])}"
    if row.get("kind") == "train" and row["score"] is not None:
        return f"{game_name(row['game'])} · score {row['score']:.1f}"
    return ""


def accuracies(row: MetricsRow) -> str:
    """Format the accuracy of each task: `task C · A 97.5 B 97.3 C 97.4`."""
    values = row["accuracy"]
    if len(values) > 6:
        return f"task {len(values)} · average {100 * sum(values) / len(values):.1f}"
    each = (f"{task_name(task)} {100 * value:.1f}" for task, value in enumerate(values))
    return f"task {task_name(row['task'])} · {' '.join(each)}"


class Display:
    """Shows the reports of the parts of a run; used as a context manager."""

    def __init__(self, parts: list[str], console: Console) -> None:
        self.done = dict.fromkeys(parts, 0.0)
        self._sum = 0.0  # of a sweep there may be thousands, and each reports often
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def __call__(self, report: Report) -> None:
        self._sum += report.progress - self.done.get(report.part, 0.0)
        self.done[report.part] = report.progress

    @property
    def overall(self) -> float:
        """Progress of the whole run, from 0 to 1."""
        return min(1.0, self._sum / len(self.done))


class Lines(Display):
    """Prints a line when a part ends a task or a segment, and at least every `LINE_SECONDS`."""

    last = 0.0

    def __call__(self, report: Report) -> None:
        super().__call__(report)
        row = report.row or {}
        due = time.monotonic() - self.last >= LINE_SECONDS
        if due or row.get("task_ended") or row.get("kind") == "test" or report.progress == 1:
            self.last = time.monotonic()
            line = f"{100 * self.overall:5.1f} %  {report.part}  {note(report)}"
            self.console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)


class Bars(Display):
    """A bar for the whole run with the remaining time, and one for each running part."""

    def __init__(self, parts: list[str], console: Console) -> None:
        super().__init__(parts, console)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self.whole = self.progress.add_task("all", total=1.0, note="")
        self.bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def __call__(self, report: Report) -> None:
        super().__call__(report)
        if report.part not in self.bars:
            self.bars[report.part] = self.progress.add_task(report.part, total=1.0, note="")
        bar = self.bars[report.part]
        self.progress.update(bar, completed=report.progress)
        if text := note(report):
            self.progress.update(bar, note=text)
        if report.progress == 1:
            self.progress.remove_task(self.bars.pop(report.part))
        self.progress.update(self.whole, completed=self.overall)


def display(parts: list[str], console: Console) -> Display:
    """Return bars for a terminal that can redraw them, and lines otherwise."""
    redraws = console.is_terminal and not console.is_dumb_terminal
    return (Bars if redraws else Lines)(parts, console)
