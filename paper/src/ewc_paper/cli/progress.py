"""A run while it is running: bars with the remaining time on a terminal, plain lines elsewhere.

If asked for, its losses, accuracies and scores also go to TensorBoard, which needs an extra.
"""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.runs.engine import Report
from ewc_paper.runs.progress import ProgressFile
from ewc_paper.terminal import console

LINE_SECONDS = 30.0  # at most this time between two lines


T = TypeVar("T")


def follow(
    events: Generator[Report, None, T],
    names: Sequence[str],
    directory: Path,
    experiment: Experiment,
    *,
    tensorboard: bool = False,
) -> T:
    """Show a run until it ends, and return what it returns.

    Its progress is also kept in its directory, for `ewc status`.

    Args:
        events: the reports of the run; closed if they cannot be shown, which stops the run.
        names: of all its parts.
        directory: of the run.
        experiment: knows what the rows of metrics mean.
        tensorboard: whether to write TensorBoard events too.
    """
    board = Events(directory / "tensorboard", experiment) if tensorboard else None
    with (
        display(names, console(), experiment) as shown,
        ProgressFile(directory) as kept,
        closing(events),
    ):
        while True:
            try:
                report = next(events)
            except StopIteration as ended:
                result: T = ended.value
                return result
            try:
                shown.show(report)
                kept.keep(report)
                if board is not None:
                    board.add(report)
            except OSError as error:
                raise RunError(
                    f"cannot show the progress of the run ({error.strerror}); it was stopped after "
                    "checkpoints: continue with --resume"
                ) from error


class Display:
    """Shows the reports of the parts of a run; used as a context manager."""

    def __init__(self, parts: Sequence[str], console: Console, experiment: Experiment) -> None:
        self.experiment = experiment
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

    def show(self, report: Report) -> None:
        """Take a report."""
        self._sum += report.progress - self.done.get(report.part, 0.0)
        self.done[report.part] = report.progress

    @property
    def overall(self) -> float:
        """Progress of the whole run, from 0 to 1."""
        return min(1.0, self._sum / len(self.done))


class Lines(Display):
    """Prints a line when a part ends a task or a segment, and at least every `LINE_SECONDS`."""

    last = 0.0

    def show(self, report: Report) -> None:
        super().show(report)
        row = report.row or {}
        due = time.monotonic() - self.last >= LINE_SECONDS
        if due or self.experiment.is_milestone(row) or report.progress == 1:
            self.last = time.monotonic()
            line = f"{100 * self.overall:5.1f} %  {report.part}  {self.experiment.headline(row)}"
            self.console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)


class Bars(Display):
    """A bar for the whole run with the remaining time, and one for each running part."""

    def __init__(self, parts: Sequence[str], console: Console, experiment: Experiment) -> None:
        super().__init__(parts, console, experiment)
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

    def show(self, report: Report) -> None:
        super().show(report)
        if report.part not in self.bars:
            self.bars[report.part] = self.progress.add_task(report.part, total=1.0, note="")
        bar = self.bars[report.part]
        self.progress.update(bar, completed=report.progress)
        if text := self.experiment.headline(report.row or {}):
            self.progress.update(bar, note=text)
        if report.progress == 1:
            self.progress.remove_task(self.bars.pop(report.part))
        self.progress.update(self.whole, completed=self.overall)


def display(parts: Sequence[str], console: Console, experiment: Experiment) -> Display:
    """Return bars for a terminal that can redraw them, and lines otherwise."""
    redraws = console.is_terminal and not console.is_dumb_terminal
    return (Bars if redraws else Lines)(parts, console, experiment)


def check_installed() -> None:
    """Raise RunError if the extra is not installed."""
    try:
        import torch.utils.tensorboard.writer  # noqa: F401
    except ImportError:
        raise RunError(
            "--tensorboard needs an extra: pip install 'ewc-paper[tensorboard]'"
        ) from None


class Events:
    """Writes the numbers of every report into a directory, as TensorBoard reads them."""

    def __init__(self, directory: Path, experiment: Experiment) -> None:
        check_installed()
        from torch.utils.tensorboard.writer import SummaryWriter

        self.experiment = experiment
        self.writer = SummaryWriter(str(directory))

    def add(self, report: Report) -> None:
        """Write the numbers of a report, by gradient steps or agent steps."""
        row = report.row or {}
        step = row.get("gradient_steps", row.get("step"))
        for name, value in self.experiment.scalars(row).items():
            self.writer.add_scalar(f"{report.part}/{name}", value, step)
        self.writer.flush()
