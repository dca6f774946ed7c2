"""Figure 3A: the accuracy of each task over all of training. EWC remembers, SGD forgets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rich.table import Table

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.permuted_mnist import (
    PAPER_TRAINING,
    MethodComparison,
    accuracy_row,
    make_learner,
    task_ends,
)
from ewc_paper.experiments.view import MAX_PANELS, Layout, Paper, StoredConfig
from ewc_paper.figures.names import METHOD_LABELS, SENTENCE_LABELS, in_order, task_name
from ewc_paper.figures.panel import LOOKS, Arrangement, Box, Figure, Panel, Series
from ewc_paper.mnist.config import METHODS
from ewc_paper.options import option
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.runs.schema import Check, integer, number, one_of, optional, record

MAX_TASKS = 100  # each has a panel in the figure

# A rate that falls to zero settles each curve before its task ends.
SMOOTH = {"schedule": "cosine", "average": 0.0, "strength": 100.0}


@dataclass(frozen=True, kw_only=True)
class LearningCurves(MethodComparison):
    """The options, the networks to train and the score."""

    presets: ClassVar[Presets] = {
        "quick": {**SMOOTH, "epochs": 3, "fisher_samples": 5000, "segments": 2},
        "laptop": {**SMOOTH, "epochs": 10},
        "paper": {
            **PAPER_TRAINING,
            "lr": 1e-3,
            "epochs": 20,
            "strength": 100.0,
            "fisher_samples": 60_000,
        },
    }

    methods: tuple[str, ...] = option(
        ("ewc", "l2", "sgd"), "methods to compare", choices=tuple(METHODS), common=True
    )

    def check(self) -> None:
        super().check()
        if self.tasks > MAX_TASKS:
            raise RunError(f"--tasks must be at most {MAX_TASKS}, got {self.tasks}")
        if "dropout" in self.methods:
            self.check_validation()

    def _parts(self) -> Iterator[Part]:
        for method in self.methods:
            config = self.part_config(method=method, curves=True, strength=self.strength_of(method))
            yield Part(method, config, make_learner)


def _part_name(part: StoredConfig) -> Check:
    """A part is named after its method."""
    method = (part.get("recipe") or {}).get("method")
    return one_of([method] if method else METHOD_LABELS)


LAYOUT = Layout(
    accuracy_row,
    config=record(tasks=integer(1, MAX_PANELS), epochs=number(0)),
    part=record(recipe=optional(record(method=optional(one_of(METHOD_LABELS))))),
    part_name=_part_name,
)


PAPER = Paper(
    "figure 3A",
    "On three random permutations of MNIST's pixels, learned one after another, plain SGD forgets "
    "A while it learns B, and more while it learns C. L2 keeps A but cannot learn B and C "
    "properly. EWC does both.",
    "Three panels, one per task, with the test accuracy of SGD, L2 and EWC over the training of A, "
    "B and C. The line of EWC stays at the top of every panel, SGD falls in A and B as soon as "
    "another task is trained, and L2 stays low in B and C.",
)


def _rows_by_method(run: RunDirectory) -> dict[str, list[MetricsRow]]:
    """Return the rows of each method, in the order of the options."""
    rows = {part.name: part.rows() for part in run.parts()}
    return in_order(rows, run.config().get("methods", []))


def figures(run: RunDirectory) -> list[Figure]:
    """Return the accuracy of each task over all of training, one panel per task."""
    config, rows = run.config(), _rows_by_method(run)
    title = "Test accuracy on each task during training"
    caption = "One panel per task; in the shaded part the task is being trained."
    lowest = _lowest_shown(rows)
    panels = [_panel(task, rows, config, lowest) for task in range(config["tasks"])]
    count = len(panels)
    legend = {"ncols": 3, "loc": "lower left", "bbox_to_anchor": (0, 1)}
    arrangement = Arrangement((6.4, 1.2 + 1.4 * count), (count, 1), shared=True, legend=legend)
    return [Figure("learning-curves", title, caption, panels, arrangement)]


def _panel(
    task: int, rows: dict[str, list[MetricsRow]], config: StoredConfig, lowest: float
) -> Panel:
    """Return the accuracy of one task, from when it was first trained."""
    epochs, tasks, name = config["epochs"], config["tasks"], task_name(task)
    return Panel(
        title=f"task {name}",
        x_label="epochs (gray: the task is being trained)",
        y_label=f"accuracy on {name}, %",
        series=[_curve(method, own, task, epochs) for method, own in rows.items()],
        boxes=[Box("", "#ededed", (task * epochs, (task + 1) * epochs))],
        borders=[border * epochs for border in range(1, tasks)],
        x_limits=(0, tasks * epochs) if epochs else None,
        y_limits=(lowest, 100),
    )


def _curve(method: str, rows: list[MetricsRow], task: int, epochs: float) -> Series:
    diverged = any(row.get("diverged") for row in rows)
    label = METHOD_LABELS[method] + (" (diverged)" if diverged else "")
    measured = [row for row in rows if row["task"] >= task and not row.get("diverged")]
    times = [row["task"] * epochs + row["epoch"] for row in measured]
    values = [100 * row["accuracy"][task] for row in measured]
    return Series(label, LOOKS[method], times, {"": values})


def _lowest_shown(rows: dict[str, list[MetricsRow]]) -> float:
    """Lower limit of the y axis: below all but the lowest hundredth of the measurements."""
    measured = [row for own in rows.values() for row in own if not row.get("diverged")]
    values = [value for row in measured for value in row["accuracy"]]
    return 5 * float(np.floor(20 * np.quantile(values, 0.01))) if values else 0.0


def result(run: RunDirectory) -> str:
    """Return each method's accuracy on the first task and on the last, after all of them."""
    tasks = run.config()["tasks"]
    ends = {
        method: ends[-1]
        for method, rows in _rows_by_method(run).items()
        if (ends := task_ends(rows)) and ends[-1]["task"] == tasks - 1
    }
    if not ends or tasks < 2:
        return ""
    shares = [
        f"{SENTENCE_LABELS[method]} {100 * row['accuracy'][0]:.1f} % on the first and "
        f"{100 * row['accuracy'][-1]:.1f} % on the last"
        if not row.get("diverged")
        else f"{SENTENCE_LABELS[method]} diverged"
        for method, row in ends.items()
    ]
    return f"Test accuracy after {tasks} tasks in turn: {'; '.join(shares)}."


def table(run: RunDirectory) -> Table:
    """The accuracy on every task after each task, for each method."""
    table = Table(title="test accuracy in % after each task")
    table.add_column("method")
    table.add_column("after task")
    for task in range(run.config()["tasks"]):
        table.add_column(f"on {task_name(task)}", justify="right")
    for method, rows in _rows_by_method(run).items():
        ends = task_ends(rows)
        for row in ends:
            diverged = row.get("diverged", False)
            values = ["diverged" if diverged else f"{100 * v:.2f}" for v in row["accuracy"]]
            last = row is ends[-1]
            table.add_row(METHOD_LABELS[method], task_name(row["task"]), *values, end_section=last)
    return table
