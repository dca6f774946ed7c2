"""The replay memory: each frame is stored once, and stacked into states when sampled.

`Replay` is the memory of one task. `Experience` has one for each context that the agent plays in,
and holds rows back whose context is undecided.

The copies of a game are played in step, so the memory is a ring of rows. A row holds, for each
copy, one frame, the action taken on it, the result of that action, and how the frame connects to
the previous row. All rows are in one memory-mapped file, so that a checkpoint only has to record
how many rows were written.

The ring has more rows than can be sampled. Rows written since the last two checkpoints therefore
never overwrite rows that a run resumed from either of them would sample: a killed run finds its
memory as it was. Each row has a checksum, which is verified when the memory is opened again.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ewc_paper.errors import RunError
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.worlds.game import frame_shape

# How a frame connects to the frame of the previous row: it continues the episode, it is the first
# of an episode, or rows are missing in between.
CONTINUES, STARTS, GAP = 0, 1, 2


class ReplayRow(NamedTuple):
    """One step of all copies. All arrays but the frames are [copies]."""

    frames: NDArray[np.uint8]  # [copies, channels, height, width]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminal: NDArray[np.bool_]  # the game ended with this step
    truncated: NDArray[np.bool_]  # interrupted here, so the next state is unknown
    is_first: NDArray[np.bool_]  # the frame is the first of an episode


class Transitions(NamedTuple):
    """A minibatch of transitions over one or more agent steps, `n_step` of the memory."""

    states: NDArray[np.uint8]  # [n, history * channels, height, width]
    actions: NDArray[np.int64]  # [n]
    rewards: NDArray[np.float32]  # [n], the discounted sum over the steps
    next_states: NDArray[np.uint8]  # as `states`
    discounts: NDArray[np.float32]  # [n], γ to the power of n_step, 0 if the game ended


class ReplayError(RunError):
    """The file of a replay memory does not contain what was written to it."""


def default_slack(rows: int) -> int:
    """Return how many rows may be written between two checkpoints."""
    return max(2048, rows // 50)


def row_layout(copies: int, frame_shape: tuple[int, int, int]) -> np.dtype[Any]:
    """Return the layout of one row in the file."""
    return np.dtype(
        [
            ("frames", np.uint8, (copies, *frame_shape)),
            ("actions", np.uint8, copies),
            ("rewards", np.float32, copies),
            ("terminal", np.bool_, copies),
            ("truncated", np.bool_, copies),
            ("connection", np.uint8, copies),
            ("checksum", np.uint32),
        ]
    )


def file_bytes(
    capacity: int, copies: int, frame_shape: tuple[int, int, int], rows_written: int
) -> int:
    """Return the disk space of a replay memory; rows that were never written take none.

    Args:
        capacity: transitions that the memory can sample from.
        copies: copies of the game that are played at once.
        frame_shape: channels, height and width of a frame.
        rows_written: rows that will be written to it.
    """
    rows = -(-capacity // copies)
    ring = rows + 2 * default_slack(rows)
    return min(ring, rows_written) * row_layout(copies, frame_shape).itemsize


class Replay:
    """The last `capacity` transitions of one task.

    With a file, `state_dict` must be called at least every `slack` rows; `needs_saving` is true
    when half of them are written.

    Args:
        capacity: transitions that can be sampled.
        copies: copies of the game that are played at once.
        frame_shape: channels, height and width of a frame.
        history: frames per state.
        n_step: agent steps per transition.
        discount: γ per agent step.
        file: where the rows are kept; in memory by default.
        slack: rows that may be written between two checkpoints.
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
        # Rows are numbered as they are written; row i is at place i % total of the ring.
        self.written = 0  # rows written since the start
        self._saved = [0, 0]  # rows written at the last two checkpoints
        self._last_known = -1  # the last row with a transition whose outcome is known
        self._layout = row_layout(copies, frame_shape)
        self._file = file
        total = self.rows + 2 * self.slack
        self._map = None if file is None else self._open(file, total)
        # A plain array over the same memory, because indexing a memmap is slower.
        self._ring: NDArray[Any] = (
            np.zeros(total, self._layout) if self._map is None else np.asarray(self._map)
        )

    def _open(self, file: Path, total: int) -> "np.memmap[Any, Any]":
        size = total * self._layout.itemsize
        if file.exists() and file.stat().st_size != size:
            raise ReplayError(
                f"{file} has {file.stat().st_size} bytes instead of {size}: it was cut short or "
                "belongs to another run; remove the part's directory and start it again"
            )
        mapped: np.memmap[Any, Any] = np.memmap(
            file, self._layout, "r+" if file.exists() else "w+", shape=(total,)
        )
        return mapped

    def __len__(self) -> int:
        """Return the number of transitions, 0 if there is none whose outcome is known."""
        if self._last_known < self._first:
            return 0
        return (min(self.written, self.rows) - self.n_step) * self.copies

    @property
    def _first(self) -> int:
        """The oldest row that can be sampled."""
        return max(0, self.written - self.rows)

    def append(self, row: ReplayRow, *, after_gap: bool = False) -> None:
        """Add a row; `after_gap` says that it does not continue the row that was added last."""
        if self.written - self._saved[1] >= self.slack and self._map is not None:
            raise ReplayError(f"{self.slack} rows were written to {self._file} and not saved")
        place = self._ring[self.written % len(self._ring) : self.written % len(self._ring) + 1]
        place["frames"], place["actions"] = row.frames, row.actions
        place["rewards"], place["terminal"] = row.rewards, row.terminal
        place["truncated"] = row.truncated
        # A gap even before a new episode: the row before it has no known outcome.
        place["connection"] = GAP if after_gap else np.where(row.is_first, STARTS, CONTINUES)
        place["checksum"] = _checksum(place[0])
        self.written += 1
        complete = self.written - 1 - self.n_step  # its n steps are all there now
        if complete >= 0 and self._outcome_known(np.array(complete), np.arange(self.copies)).any():
            self._last_known = complete

    def sample(self, count: int, random: np.random.Generator) -> Transitions:
        """Draw transitions uniformly, with replacement, among those whose outcome is known."""
        rows, copies = self._draw(count, random)  # [count] each
        steps = rows[:, None] + np.arange(self.n_step + 1)  # [count, n + 1]
        ring, at = self._ring, steps % len(self._ring)
        terminal = ring["terminal"][at[:, :-1], copies[:, None]]  # [count, n]
        # The end of a game within the n steps drops the rewards after it, and the bootstrap.
        over = np.cumsum(terminal, axis=1, dtype=np.int64) > 0  # by the end of each step
        before = np.concatenate([np.zeros((count, 1), bool), over[:, :-1]], axis=1)  # at its start
        factors = self.discount ** np.arange(self.n_step) * ~before
        rewards = (ring["rewards"][at[:, :-1], copies[:, None]] * factors).sum(1)
        return Transitions(
            states=self._states(rows, copies),
            actions=ring["actions"][at[:, 0], copies].astype(np.int64),
            rewards=rewards.astype(np.float32),
            next_states=self._states(rows + self.n_step, copies),
            discounts=np.where(over[:, -1], 0, self.discount**self.n_step).astype(np.float32),
        )

    def _draw(
        self, count: int, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return row and copy [count] of transitions whose outcome is known."""
        if len(self) < 1:
            raise ValueError(
                f"no transition can be sampled: expected {self.n_step + 1} rows in a row, "
                f"got {self.written} rows in all"
            )
        rows = np.empty(0, np.int64)
        copies = np.empty(0, np.int64)
        # Most outcomes are known, so drawing among all and rejecting is faster than listing them.
        for _ in range(100):
            drawn = random.integers(self._first, self.written - self.n_step, 2 * count)
            copy = random.integers(0, self.copies, 2 * count)
            known = self._outcome_known(drawn, copy)
            rows = np.concatenate([rows, drawn[known]])[:count]
            copies = np.concatenate([copies, copy[known]])[:count]
            if len(rows) == count:
                return rows, copies
        # Nearly all outcomes are unknown, as after many visits of n steps.
        all_rows, all_copies = self._known_transitions()
        drawn = random.integers(0, len(all_rows), count)
        return all_rows[drawn], all_copies[drawn]

    def _known_transitions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return row and copy of every transition whose outcome is known, oldest first."""
        candidates = np.arange(self._first, self.written - self.n_step)
        rows, copies = (
            np.repeat(candidates, self.copies),
            np.tile(np.arange(self.copies), len(candidates)),
        )
        known = self._outcome_known(rows, copies)
        return rows[known], copies[known]

    def _outcome_known(
        self, rows: NDArray[np.int64], copies: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return whether the n steps from each row have no gap before the end of the game.

        Args:
            rows: numbers of rows [k], or one row [] for all copies.
            copies: the copy in each of them [k].
        """
        alive = np.ones(len(copies), bool)  # the game has not ended in an earlier step
        known = np.ones(len(copies), bool)
        ring = self._ring
        for step in range(self.n_step):
            here, after = (rows + step) % len(ring), (rows + step + 1) % len(ring)
            terminal = ring["terminal"][here, copies]
            gap = ring["truncated"][here, copies] | (ring["connection"][after, copies] == GAP)
            known &= ~(alive & ~terminal & gap)
            alive &= ~terminal
        return known

    def _states(self, rows: NDArray[np.int64], copies: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the stacks of the last `history` frames; those before an episode are zero."""
        back = rows[:, None] - np.arange(self.history)[::-1]  # [k, history], the newest last
        at = back % len(self._ring)
        frames = self._ring["frames"][at, copies[:, None]]  # [k, history, channels, height, width]
        starts = self._ring["connection"][at, copies[:, None]] != CONTINUES
        # A frame belongs to the state if no later frame of the stack starts an episode: of the
        # starts from it on, counted from the newest back, at most its own.
        later = np.cumsum(starts[:, ::-1], axis=1)[:, ::-1]
        shown = (later - starts == 0) & (back >= self._first)
        if not shown.all():
            frames[~shown] = 0
        stacked: NDArray[np.uint8] = frames.reshape(len(rows), -1, *frames.shape[3:])
        return stacked

    def spread_states(self, count: int) -> NDArray[np.uint8]:
        """Return states spread evenly over the memory, to test a network on."""
        rows = np.linspace(self._first, self.written - 1, count).astype(np.int64)
        return self._states(rows, np.arange(count) % self.copies)

    @property
    def needs_saving(self) -> bool:
        """True when unsaved rows would soon overwrite rows that a resume needs."""
        return self.written - self._saved[1] >= self.slack // 2

    def state_dict(self) -> dict[str, Any]:
        """Write all rows to the disk and return how many there are."""
        if self._map is not None:
            self._map.flush()
        self._saved = [self._saved[1], self.written]
        return {"written": self.written, "checksum": self._checksum_of_rows()}

    def _live(self) -> NDArray[np.int64]:
        """Return the places in the ring of the rows that can be sampled."""
        return np.arange(self._first, self.written) % len(self._ring)

    def _checksum_of_rows(self) -> int:
        """Return a checksum of the checksums, which detects whole rows of another memory."""
        return zlib.crc32(self._ring["checksum"][self._live()].tobytes())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to the rows written at a checkpoint, and verify each of them."""
        self.written = int(state["written"])
        self._saved = [self.written, self.written]
        for number in range(self._first, self.written):
            row = self._ring[number % len(self._ring)]
            if row["checksum"] != _checksum(row):
                raise ReplayError(
                    f"row {number} of {self._file} is damaged: the replay memory cannot be "
                    "trusted; remove the part's directory and start it again"
                )
        if state.get("checksum") not in (None, self._checksum_of_rows()):
            raise ReplayError(
                f"{self._file} holds other rows than were saved: the replay memory cannot be "
                "trusted; remove the part's directory and start it again"
            )
        known, _ = self._known_transitions()
        self._last_known = int(known.max(initial=-1))


def _checksum(row: NDArray[Any]) -> int:
    """Return the checksum of a row without its last four bytes, which hold the checksum."""
    return zlib.crc32(row.tobytes()[:-4])


REPLAY_FILES = "replay-{context}.rows"
REPLAY_PATTERN = REPLAY_FILES.format(context="*")


def replay_bytes(config: AgentConfig, schedule: Sequence[str]) -> int:
    """Return the disk space of the replay memories, one per game of the schedule."""
    rows_per_segment = -(-config.segment_steps // config.environments)
    return sum(
        file_bytes(
            config.replay_capacity,
            config.environments,
            frame_shape(game, config.size),
            visits * rows_per_segment,
        )
        for game, visits in Counter(schedule).items()
    )


class Experience:
    """Holds rows back until their context is decided, then stores them in its replay memory."""

    def __init__(self, config: AgentConfig, frame_shape: tuple[int, int, int]) -> None:
        self._config, self._frame_shape = config, frame_shape
        self.replays: dict[int, Replay] = {}
        self.pending: list[ReplayRow] = []
        self._gap = True  # the next row to be stored does not follow the last one stored
        self.directory: Path | None = None  # for the files of the replay memories

    @property
    def needs_saving(self) -> bool:
        """True when unsaved rows would soon overwrite rows that a resume needs."""
        return any(replay.needs_saving for replay in self.replays.values())

    def hold(self, row: ReplayRow) -> None:
        """Keep a row until its context is decided."""
        self.pending.append(row)

    def store(self, context: int) -> None:
        """Move all pending rows to the replay memory of their context."""
        replay = self._replay(context)
        for row in self.pending:
            replay.append(row, after_gap=self._gap)
            self._gap = False
        self.pending.clear()

    def forget(self, context: int) -> None:
        """Drop the rows of a context; its file stays, for a resume from an earlier checkpoint."""
        self.replays.pop(context, None)

    def mark_gap(self) -> None:
        """Note that the next row to be stored does not continue the last one stored."""
        self._gap = True

    def drop_pending(self) -> None:
        """Forget the rows whose context was not decided before their game ended."""
        self.pending.clear()
        self.mark_gap()

    def _replay(self, context: int) -> Replay:
        if context not in self.replays:
            config = self._config
            self.replays[context] = Replay(
                config.replay_capacity,
                config.environments,
                self._frame_shape,
                history=config.history,
                n_step=config.n_step,
                discount=config.discount,
                file=self._file(context),
            )
        return self.replays[context]

    def _file(self, context: int) -> Path | None:
        name = REPLAY_FILES.format(context=context)
        return self.directory / name if self.directory else None

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rows in each replay memory's file, and the pending rows."""
        return {
            "gap": self._gap,
            "replays": {
                str(context): replay.state_dict() for context, replay in self.replays.items()
            },
            "pending": {
                str(number): {
                    name: torch.from_numpy(array) for name, array in row._asdict().items()
                }
                for number, row in enumerate(self.pending)
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._gap = state["gap"]
        for context, saved in state["replays"].items():
            self._replay(int(context)).load_state_dict(saved)
        self.pending = [
            ReplayRow(**{name: tensor.numpy() for name, tensor in row.items()})
            for row in state["pending"].values()
        ]
