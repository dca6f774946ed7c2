"""The order in which games are learned, with several visits to each, and where a run is in it."""

from collections.abc import Sequence

import numpy as np


def segments(games: Sequence[str], visits: int, seed: int) -> list[str]:
    """Return the game of each segment, `visits * len(games)` in all.

    Each round is a random permutation of the games, drawn uniformly among those that do not start
    with the last game of the previous round. A larger number of visits only adds rounds at the end.

    Args:
        games: the games, all different.
        visits: segments per game.
        seed: seed of the permutations.
    """
    if len(set(games)) < len(games) or len(games) < min(visits, 2):
        raise ValueError(
            f"expected different games, and at least two of them for more than one visit; "
            f"got {list(games)} for {visits} visits"
        )
    random = np.random.default_rng(seed)
    order: list[str] = []
    while len(order) < visits * len(games):
        a_round = [games[index] for index in random.permutation(len(games))]
        if order[-1:] != a_round[:1]:
            order += a_round
    return order


ORDERS = DRAWN, GIVEN = "drawn", "given"


def schedule_of(games: Sequence[str], visits: int, order: str, seed: int) -> list[str]:
    """Return the game of each segment.

    Args:
        games: the games.
        visits: segments per game.
        order: one of `ORDERS`: each round drawn anew, or as the games are given in every round.
        seed: seed of what is drawn.
    """
    return [*games] * visits if order == GIVEN else segments(games, visits, seed)


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
