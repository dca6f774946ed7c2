"""Stays in tasks: which tasks follow each other too quickly to be different.

Tasks change rarely; the screens of one task come and go. A stay that is shorter than any visit to
a task can be is therefore part of the visit before or after it.
"""

from typing import Any


class Stays:
    """Watches the task at every observation, and says which two should be merged.

    A stay begins when a task has lasted `dwell` observations, and is short if it ends before
    `shortest`. A short stay speaks for two tasks being one if the stay before it was short too (it
    and that one), or if the tasks before and after it are the same (it and that one). They are
    merged at once if the younger has never had a long stay, and otherwise when this has happened
    `repeats` times.

    Args:
        shortest: observations of the shortest visit to a task (0: nothing is ever merged).
        dwell: observations in a row that make a stay.
        repeats: short stays that merge two tasks which both have had long ones.
    """

    def __init__(self, shortest: int, dwell: int, repeats: int) -> None:
        self.shortest, self.dwell, self.repeats = shortest, dwell, repeats
        self.task, self.lasted = 0, 0  # the present stay
        self.before, self.before_lasted = -1, 0  # the stay before it; -1: none
        self.candidate, self.seen = 0, 0  # the task observed last, and how often in a row
        self.longest: dict[int, int] = {}  # stay of each task
        self.votes: dict[tuple[int, int], int] = {}  # short stays of (older, younger)

    def observe(self, task: int) -> tuple[int, int] | None:
        """Note the task of an observation; return (younger, older) if they should be merged."""
        self.seen = self.seen + 1 if task == self.candidate else 1
        self.candidate = task
        self.lasted += 1
        if task == self.task or self.seen != self.dwell:
            return None
        left, lasted = self.task, self.lasted - self.dwell
        before, before_lasted = self.before, self.before_lasted
        self.longest[left] = max(self.longest.get(left, 0), lasted)
        self.before, self.before_lasted = left, lasted
        self.task, self.lasted = task, self.dwell
        if lasted >= self.shortest:
            return None
        if before not in (-1, left) and before_lasted < self.shortest:
            return self._vote(before, left)
        return self._vote(left, task) if before == task else None

    def _vote(self, one: int, other: int) -> tuple[int, int] | None:
        older, younger = min(one, other), max(one, other)
        self.votes[older, younger] = self.votes.get((older, younger), 0) + 1
        is_young = self.longest.get(younger, 0) < self.shortest
        if is_young or self.votes[older, younger] >= self.repeats:
            return younger, older
        return None

    def merge(self, task: int, into: int) -> None:
        """From now on the two are one task."""
        self.before = into if self.before == task else self.before
        self.task = into if self.task == task else self.task
        self.candidate = into if self.candidate == task else self.candidate
        if self.before == self.task:  # the two stays are one
            self.lasted += self.before_lasted
            self.before, self.before_lasted = -1, 0
        self.longest[into] = max(self.longest.get(into, 0), self.longest.pop(task, 0))
        self.votes = {pair: n for pair, n in self.votes.items() if task not in pair}

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "longest": [list(item) for item in self.longest.items()],
            "votes": [[*pair, n] for pair, n in self.votes.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.longest = dict(state["longest"])
        self.votes = {(older, younger): n for older, younger, n in state["votes"]}


_PLAIN = ("task", "lasted", "before", "before_lasted", "candidate", "seen")
