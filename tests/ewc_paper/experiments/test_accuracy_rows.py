"""Rows of accuracies: one value per task so far, and none if the network diverged."""

import math
from typing import Any

import pytest
from support.small_runs import end

from ewc_paper.experiments.accuracy_rows import accuracy_row, average_accuracy, task_ends
from ewc_paper.runs.schema import SchemaError


def test_a_row_has_one_accuracy_per_task_so_far() -> None:
    check = accuracy_row({"tasks": 2}, {})
    check(end(1, 0.9, 0.8, validation=[0.9, 0.8]))
    with pytest.raises(SchemaError, match=r"^accuracy: expected 2 values"):
        check(end(1, 0.9))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": 2}, "^task: expected a whole number from 0 to 1, got 2"),
        ({"accuracy": [1.5]}, "^accuracy.0: expected a number from 0 to 1, got 1.5"),
        ({"validation": [2]}, "^validation.0: expected"),
        ({"task_ended": 1}, "^task_ended: expected true or false, got 1"),
    ],
)
def test_other_rows_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        accuracy_row({"tasks": 2}, {})({**end(0, 0.9), **changes})


def test_averages_are_in_percent() -> None:
    assert average_accuracy(end(1, 0.9, 0.8)) == pytest.approx(85)
    assert math.isnan(average_accuracy(end(1, 0.9, 0.8, diverged=True)))


def test_rows_within_a_task_are_left_out() -> None:
    within = {**end(0, 0.5), "task_ended": False}
    assert task_ends([within, end(0, 0.9)]) == [end(0, 0.9)]
