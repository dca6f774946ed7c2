"""Rows of metrics of the experiments on permuted MNIST: the accuracy of each task so far."""

import math
from collections.abc import Iterable

import numpy as np

from ewc_paper.experiments.view import MAX_SEGMENTS, StoredConfig
from ewc_paper.runs.directory import MetricsRow
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
