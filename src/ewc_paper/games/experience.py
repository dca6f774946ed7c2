"""The experience of all contexts: one replay memory each, and rows whose context is undecided."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ewc_paper.games.config import AgentConfig
from ewc_paper.games.replay import Replay, ReplayRow, file_bytes
from ewc_paper.games.worlds.game import frame_shape

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
            "replays": {str(context): one.state_dict() for context, one in self.replays.items()},
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
