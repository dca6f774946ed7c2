"""Rows of metrics of the experiments on permuted MNIST: the accuracy of each task so far."""

import math
from collections.abc import Iterable

import numpy as np

from ewc_paper.experiments.view import MAX_SEGMENTS, StoredConfig
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.schema import Check, anything, flag, integer, list_of, number, optional, record


def accuracy_row(run: StoredConfig, part: StoredConfig) -> Check:
    """Return the check of a row; the argument `row` of a Layout."""
    tasks = run.get("tasks", MAX_SEGMENTS)
    accuracies = list_of(number(0, 1), 1, tasks)
    fields = record(
        task=integer(0, tasks - 1),
        epoch=number(0),
        task_ended=flag,
        accuracy=accuracies,
        validation=optional(accuracies),
    )

    def check(row: MetricsRow) -> None:
        fields(row)
        tasks_so_far = row["task"] + 1
        record(accuracy=list_of(anything, tasks_so_far, tasks_so_far))(row)

    return check


def task_ends(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Select the rows that were measured at the end of a task."""
    return [row for row in rows if row["task_ended"]]


def average_accuracy(row: MetricsRow) -> float:
    """Average over all tasks so far, in percent; NaN if the network diverged."""
    return math.nan if row.get("diverged") else 100 * float(np.mean(row["accuracy"]))


def choosing_accuracy(row: MetricsRow) -> float:
    """Average over all tasks so far, in percent, on what options may be chosen by.

    These are the validation images, or the test images of a run that holds none out. A network that
    diverged counts as 0.
    """
    if row.get("diverged"):
        return 0.0
    return 100 * float(np.mean(row.get("validation") or row["accuracy"]))


def mean_choosing_accuracy(run: RunDirectory) -> float | None:
    """The mean over networks of their `choosing_accuracy` after the last task that has ended."""
    ends = [ends[-1] for part in run.parts() if (ends := task_ends(_accuracies(part)))]
    return float(np.mean([choosing_accuracy(row) for row in ends])) if ends else None


def _accuracies(part: RunDirectory) -> list[MetricsRow]:
    """The rows of a part that have accuracies; others may be measured beside them."""
    return [row for row in part.rows() if "accuracy" in row]
