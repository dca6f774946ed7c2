"""Tasks that take turns faster than tasks change: they are one task.

A visit to a task lasts for a while. When a task is left for another and comes back sooner than the
shortest visit could end, there was no visit in between: both are screens of one task. (Copies of a
game that start together show its first scene together, and come back to it together.)
"""

from typing import Any

from ewc.recognition.probation import A_LITTLE, NONE


class Turns:
    """Watches the task at every observation, and says which tasks take turns.

    A task that is reported for only a moment may be a mistake. So a stay in a task begins when the
    task has been reported for a quarter of the shortest visit in a row, and lasts until the stay in
    another begins.

    Args:
        length: observations of the shortest visit to a task (0 or less: nothing is ever merged).
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.reported, self.in_a_row = NONE, 0  # the last task, and for how many observations
        self.present, self.before = NONE, NONE  # tasks of the present stay and the one before it
        self.stayed = 0  # observations since the present stay began

    def observe(self, task: int) -> tuple[int, int] | None:
        """Note the task of an observation; return (younger, older) if they should be merged."""
        self.in_a_row = self.in_a_row + 1 if task == self.reported else 1
        self.reported = task
        self.stayed += 1
        if task == self.present or self.in_a_row < A_LITTLE * self.length:
            return None
        took_turns = task == self.before and self.stayed - self.in_a_row < self.length
        pair = (max(self.present, task), min(self.present, task))
        self.before, self.present, self.stayed = self.present, task, self.in_a_row
        return pair if took_turns and self.length > 0 else None

    def merge(self, task: int, into: int) -> None:
        """From now on the two are one task."""
        for name in ("reported", "present", "before"):
            if getattr(self, name) == task:
                setattr(self, name, into)
        if self.before == self.present:
            self.before = NONE

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _STATE:
            setattr(self, name, state[name])


_STATE = ("reported", "in_a_row", "present", "before", "stayed")
