"""Where a run is in its schedule of segments."""

from collections.abc import Sequence


class SegmentClock:
    """Counts the rows of each segment; a row is one agent step of every copy of the game.

    Args:
        schedule: the game of each segment.
        segment_steps: agent steps per segment, over all copies; rounded up to whole rows.
        copies: copies of the game that are played at once.

    Attributes:
        segment: number of completed segments.
        row: number of rows played in the current segment.
    """

    def __init__(self, schedule: Sequence[str], segment_steps: int, copies: int) -> None:
        self.schedule, self.copies = list(schedule), copies
        self.rows_per_segment = -(-segment_steps // copies)
        self.segment = self.row = 0

    @property
    def game(self) -> str:
        """The game of the current segment."""
        return self.schedule[self.segment]

    @property
    def previous_game(self) -> str | None:
        """The game of the last completed segment."""
        return self.schedule[self.segment - 1] if self.segment else None

    @property
    def rows_left(self) -> int:
        """Rows still to be played in the current segment."""
        return self.rows_per_segment - self.row

    @property
    def over(self) -> bool:
        """Whether all segments are completed."""
        return self.segment == len(self.schedule)

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return (self.segment + self.row / self.rows_per_segment) / len(self.schedule)

    @property
    def agent_steps(self) -> int:
        """Agent steps since the start of the run."""
        return (self.segment * self.rows_per_segment + self.row) * self.copies

    def agent_steps_in(self, game: str) -> int:
        """Return the agent steps that were played in one game."""
        rows = self.schedule[: self.segment].count(game) * self.rows_per_segment
        if not self.over and game == self.game:
            rows += self.row
        return rows * self.copies

    def times_due(self, every: int) -> int:
        """Return how many multiples of `every` agent steps were reached by the last row."""
        steps = self.agent_steps
        return steps // every - (steps - self.copies) // every

    def tick(self) -> None:
        """Count one row."""
        self.row += 1

    def next_segment(self) -> None:
        """Complete the current segment."""
        self.segment, self.row = self.segment + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"segment": self.segment, "row": self.row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.segment, self.row = state["segment"], state["row"]
