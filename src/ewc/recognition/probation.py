"""Probation of new tasks: which of them belong to another task after all.

Tasks change rarely; the screens of one task come and go. So a new task that takes turns with the
task before it, or that is left again soon, was only a new screen of another task. A task that has
passed its probation is merged into another only if the two take turns (see `turns`): a mistake
would cost more than one task too many.
"""

from collections import Counter
from typing import Any

A_LITTLE = 0.25  # share of the observations of a new task and the one before it
NONE = -1  # stands for the task before the first one


class Probation:
    """Watches the task at every observation, and says which new tasks should be merged.

    When a new task has existed for `length` observations, it belongs to the task before it if that
    one was reported for more than a little of the time that the two share. Otherwise it has passed
    if it was reported most of all, and belongs to the one that was if not: then it was the first
    screen of a task that has shown others since. The same holds if a task was opened right after
    it, sooner than a visit can end.

    Args:
        length: observations of the shortest visit to a task (0: nothing is ever merged).
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.before: dict[int, int] = {}  # by task on probation, the task that it followed
        self.reported: dict[int, Counter[int]] = {}  # and how often each was reported since then

    def begin(self, task: int, before: int) -> None:
        if self.length > 0:
            self.before[task], self.reported[task] = before, Counter()

    def observe(self, task: int) -> tuple[int, int] | None:
        """Note the task of an observation; return (younger, older) if they should be merged."""
        for reported in self.reported.values():
            reported[task] += 1
        for new, reported in self.reported.items():
            if reported.total() >= self.length:
                return self._end(new)
        return None

    def _end(self, new: int) -> tuple[int, int] | None:
        before, reported = self.before.pop(new), self.reported.pop(new)
        if reported[before] > A_LITTLE * (reported[before] + reported[new]):
            other = before
        else:
            other = max(reported, key=lambda task: (reported[task], task == new))
        if other == new:
            other = max((task for task, left in self.before.items() if left == new), default=new)
        return None if other == new else (max(new, other), min(new, other))

    def merge(self, task: int, into: int) -> None:
        """From now on the two are one task."""
        self.before.pop(task, None)
        self.reported.pop(task, None)
        for new, reported in self.reported.items():
            reported[into] += reported.pop(task, 0)
            self.before[new] = into if self.before[new] == task else self.before[new]

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "before": [list(item) for item in self.before.items()],
            "reported": [[new, *item] for new, r in self.reported.items() for item in r.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = dict(state["before"])
        self.reported = {new: Counter() for new in self.before}
        for new, task, observations in state["reported"]:
            self.reported[new][task] = observations
