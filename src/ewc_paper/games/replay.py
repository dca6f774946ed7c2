"""Replay memory of one task: every frame stored once, states stacked when they are sampled.

The copies of a game are played in step, so the memory is a ring of rows; a row holds, for every
copy, one frame, the action taken on it, what came of it, and how the frame joins the row before.
All of it lies in one file that is mapped into memory, so that a checkpoint need only note how many
rows were written.

The ring has more rows than the memory may look back on. Rows written since the last two checkpoints
thus never fall on rows that a run resumed from either of them would sample: a killed run finds its
memory as it was. Each row carries a checksum, which is tested when the memory is opened again.
"""

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# How a frame joins the frame of the row before.
FOLLOWS, STARTS, GAP = 0, 1, 2  # goes on; first of an episode; rows are missing in between


class Row(NamedTuple):
    """One step of all copies: what was seen, done and got, [copies] each."""

    frames: NDArray[np.uint8]  # [copies, channels, height, width]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminal: NDArray[np.bool_]  # the game ended with this step
    cut: NDArray[np.bool_]  # broken off, but not at an end: what would have followed is not known
    fresh: NDArray[np.bool_]  # the frame is the first of an episode


class Batch(NamedTuple):
    """Transitions: r is the discounted sum over n steps, and discounts is γⁿ, 0 past an end."""

    states: NDArray[np.uint8]  # [n, history * channels, height, width]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    next_states: NDArray[np.uint8]
    discounts: NDArray[np.float32]


class ReplayError(RuntimeError):
    """The file of a replay memory does not hold what was written."""


def default_slack(rows: int) -> int:
    """Rows that may be written between two checkpoints."""
    return max(2048, rows // 50)


def row_layout(copies: int, frame_shape: tuple[int, int, int]) -> np.dtype[Any]:
    """One row of the ring, as it lies in the file."""
    return np.dtype(
        [
            ("frames", np.uint8, (copies, *frame_shape)),
            ("actions", np.uint8, copies),
            ("rewards", np.float32, copies),
            ("terminal", np.bool_, copies),
            ("cut", np.bool_, copies),
            ("joint", np.uint8, copies),
            ("checksum", np.uint32),
        ]
    )


def file_bytes(
    capacity: int, copies: int, frame_shape: tuple[int, int, int], rows_written: int
) -> int:
    """What the file of a replay memory takes on disk, where rows never written take no room."""
    rows = -(-capacity // copies)
    ring = rows + 2 * default_slack(rows)
    return min(ring, rows_written) * row_layout(copies, frame_shape).itemsize


class Replay:
    """The last `capacity` transitions of one task.

    Its owner has to save at least every `slack` rows; `nearly_full` says when half are written.
    """

    def __init__(
        self,
        capacity: int,
        copies: int,
        frame_shape: tuple[int, int, int],
        *,
        history: int,
        n_step: int = 1,
        discount: float = 0.99,
        file: Path | None = None,
        slack: int | None = None,
    ) -> None:
        self.rows = -(-capacity // copies)
        self.copies, self.history, self.n_step, self.discount = copies, history, n_step, discount
        self.slack = default_slack(self.rows) if slack is None else slack
        self.written = 0  # rows ever written
        self._saved = [0, 0]  # rows written at the last two checkpoints
        self._layout = row_layout(copies, frame_shape)
        self._file = file
        total = self.rows + 2 * self.slack
        self._map = None if file is None else self._open(file, total)
        # The plain array over the same memory: indexing a memmap costs more.
        self._ring: NDArray[Any] = (
            np.zeros(total, self._layout) if self._map is None else np.asarray(self._map)
        )

    def _open(self, file: Path, total: int) -> "np.memmap[Any, Any]":
        size = total * self._layout.itemsize
        if file.exists() and file.stat().st_size != size:
            raise ReplayError(
                f"{file} has {file.stat().st_size} bytes instead of {size}: it was cut short or "
                "belongs to another run; remove the part's directory and start it anew"
            )
        mapped: np.memmap[Any, Any] = np.memmap(
            file, self._layout, "r+" if file.exists() else "w+", shape=(total,)
        )
        return mapped

    def __len__(self) -> int:
        """Transitions that can be sampled from."""
        return max(0, min(self.written, self.rows) - self.n_step) * self.copies

    def append(self, row: Row, *, after_gap: bool = False) -> None:
        """Add a row; `after_gap` if the row before it in the game is not the last one here."""
        if self.written - self._saved[1] >= self.slack and self._map is not None:
            raise ReplayError(f"{self.slack} rows were written to {self._file} and not saved")
        place = self._ring[self.written % len(self._ring) : self.written % len(self._ring) + 1]
        place["frames"], place["actions"] = row.frames, row.actions
        place["rewards"], place["terminal"], place["cut"] = row.rewards, row.terminal, row.cut
        place["joint"] = np.where(row.fresh, STARTS, GAP if after_gap else FOLLOWS)
        place["checksum"] = _checksum(place[0])
        self.written += 1

    def sample(self, count: int, random: np.random.Generator) -> Batch:
        """Draw transitions evenly, with replacement, among those whose outcome is known."""
        rows, copies = self._draw(count, random)
        steps = rows[:, None] + np.arange(self.n_step + 1)
        ring, at = self._ring, steps % len(self._ring)
        terminal = ring["terminal"][at[:, :-1], copies[:, None]]
        # An end within the n steps cuts off the rewards after it, and the bootstrap.
        over = np.cumsum(terminal, axis=1, dtype=np.int64) > 0
        before = np.concatenate([np.zeros((count, 1), bool), over[:, :-1]], axis=1)
        factors = self.discount ** np.arange(self.n_step) * ~before
        rewards = (ring["rewards"][at[:, :-1], copies[:, None]] * factors).sum(1)
        return Batch(
            states=self._states(rows, copies),
            actions=ring["actions"][at[:, 0], copies].astype(np.int64),
            rewards=rewards.astype(np.float32),
            next_states=self._states(rows + self.n_step, copies),
            discounts=np.where(over[:, -1], 0, self.discount**self.n_step).astype(np.float32),
        )

    def _draw(
        self, count: int, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        first = max(0, self.written - self.rows)
        if len(self) < 1:
            raise ValueError(f"expected more than {self.n_step} rows to sample, got {self.written}")
        rows = np.empty(0, np.int64)
        copies = np.empty(0, np.int64)
        for _ in range(100):
            drawn = random.integers(first, self.written - self.n_step, 2 * count)
            copy = random.integers(0, self.copies, 2 * count)
            known = self._outcome_known(drawn, copy)
            rows = np.concatenate([rows, drawn[known]])[:count]
            copies = np.concatenate([copies, copy[known]])[:count]
            if len(rows) == count:
                return rows, copies
        raise ValueError("no transition in this replay memory has a known outcome")

    def _outcome_known(
        self, rows: NDArray[np.int64], copies: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether the n steps from each row go on without a break, or to an end before any."""
        alive = np.ones(len(rows), bool)
        known = np.ones(len(rows), bool)
        for step in range(self.n_step):
            here, after = (rows + step) % len(self._ring), (rows + step + 1) % len(self._ring)
            terminal = self._ring["terminal"][here, copies]
            gap = self._ring["cut"][here, copies] | (self._ring["joint"][after, copies] == GAP)
            known &= ~(alive & ~terminal & gap)
            alive &= ~terminal
        return known

    def _states(self, rows: NDArray[np.int64], copies: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The last `history` frames of each, the newest last; nothing from before an episode."""
        back = rows[:, None] - np.arange(self.history)[::-1]
        oldest = max(0, self.written - self.rows)
        at = back % len(self._ring)
        frames = self._ring["frames"][at, copies[:, None]]
        starts = self._ring["joint"][at, copies[:, None]] != FOLLOWS
        # A frame is shown if no later frame of the stack starts something new.
        later = np.cumsum(starts[:, ::-1], axis=1)[:, ::-1]
        shown = (later - starts == 0) & (back >= oldest)
        if not shown.all():
            frames[~shown] = 0
        stacked: NDArray[np.uint8] = frames.reshape(len(rows), -1, *frames.shape[3:])
        return stacked

    def spread_states(self, count: int) -> NDArray[np.uint8]:
        """States spread evenly over the memory, to test a network on."""
        first = max(0, self.written - self.rows)
        rows = np.linspace(first, self.written - 1, count).astype(np.int64)
        return self._states(rows, np.arange(count) % self.copies)

    @property
    def nearly_full(self) -> bool:
        """Whether a checkpoint is due, lest new rows fall on ones that the last two need."""
        return self.written - self._saved[1] >= self.slack // 2

    def state_dict(self) -> dict[str, Any]:
        """Push all rows to the disk and tell how many there are."""
        if self._map is not None:
            self._map.flush()
        self._saved = [self._saved[1], self.written]
        return {"written": self.written, "checksum": self._checksum_of_rows()}

    def _live(self) -> NDArray[np.int64]:
        """Where the rows that may be sampled lie in the ring."""
        return np.arange(max(0, self.written - self.rows), self.written) % len(self._ring)

    def _checksum_of_rows(self) -> int:
        """Over their checksums: whole rows of another memory are noticed too."""
        return zlib.crc32(self._ring["checksum"][self._live()].tobytes())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to the rows written at a checkpoint, after testing each of them."""
        self.written = int(state["written"])
        self._saved = [self.written, self.written]
        for number in range(max(0, self.written - self.rows), self.written):
            row = self._ring[number % len(self._ring)]
            if row["checksum"] != _checksum(row):
                raise ReplayError(
                    f"row {number} of {self._file} is damaged: the replay memory cannot be "
                    "trusted; remove the part's directory and start it anew"
                )
        if state.get("checksum") not in (None, self._checksum_of_rows()):
            raise ReplayError(
                f"{self._file} holds other rows than were saved: the replay memory cannot be "
                "trusted; remove the part's directory and start it anew"
            )


def _checksum(row: NDArray[Any]) -> int:
    """Over all but the checksum itself, the last four bytes of a row."""
    return zlib.crc32(row.tobytes()[:-4])
