"""Probation of new tasks: which of them belong to another task after all.

Tasks change rarely; the screens of one task come and go. So a new task that is not the one seen
most during the first observations after its opening was only a new screen of another task. A task
that has passed its probation is never merged into another: the mistake would cost more than one
task too many.
"""

from collections import Counter
from typing import Any

NONE = -1  # stands for the task before the first one


class Probation:
    """Watches the task at every observation, and says which new tasks should be merged.

    After `length` observations a new task has passed if no other was reported more often. If not,
    it belongs to the task before it when that one was reported more often, and otherwise (the game
    has changed in between) to the one that was reported most.

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
        most = max(reported, key=lambda task: (reported[task], task == new))
        if most == new:
            return None
        other = before if reported[before] > reported[new] else most
        return max(new, other), min(new, other)

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
        self.before = {new: before for new, before in state["before"]}
        self.reported = {new: Counter() for new in self.before}
        for new, task, observations in state["reported"]:
            self.reported[new][task] = observations
