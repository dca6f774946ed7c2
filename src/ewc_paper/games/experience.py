"""The experience of all tasks: a replay memory for each, and the rows whose task is undecided."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ewc_paper.games.config import AgentConfig
from ewc_paper.games.replay import Replay, Row, file_bytes
from ewc_paper.games.worlds.game import frame_shape

REPLAY_FILES = "replay-{context}.rows"
REPLAY_PATTERN = REPLAY_FILES.format(context="*")


def replay_bytes(settings: AgentConfig, schedule: Sequence[str]) -> int:
    """What the replay memories take on disk, one for each game of the schedule."""
    rows_per_segment = -(-settings.segment_steps // settings.environments)
    return sum(
        file_bytes(
            settings.replay_capacity,
            settings.environments,
            frame_shape(game, settings.size),
            visits * rows_per_segment,
        )
        for game, visits in Counter(schedule).items()
    )


class Experience:
    """Rows are held back until their task is decided, and then stored in its replay memory."""

    def __init__(self, settings: AgentConfig, frame_shape: tuple[int, int, int]) -> None:
        self._settings, self._frame_shape = settings, frame_shape
        self.replays: dict[int, Replay] = {}
        self.pending: list[Row] = []
        self._broken = True  # the next row to be stored does not follow the last one stored
        self.directory: Path | None = None  # where the replay memories' files go

    @property
    def needs_saving(self) -> bool:
        return any(replay.nearly_full for replay in self.replays.values())

    def hold(self, row: Row) -> None:
        """Keep a row until its task is decided."""
        self.pending.append(row)

    def store(self, context: int) -> None:
        """Hand all rows that were held back to the replay memory of their task."""
        replay = self._replay(context)
        for row in self.pending:
            replay.append(row, after_gap=self._broken)
            self._broken = False
        self.pending.clear()

    def break_off(self) -> None:
        """What comes next does not follow what came before: another task, or another game."""
        self._broken = True

    def _replay(self, context: int) -> Replay:
        if context not in self.replays:
            settings = self._settings
            self.replays[context] = Replay(
                settings.replay_capacity,
                settings.environments,
                self._frame_shape,
                history=settings.history,
                n_step=settings.n_step,
                discount=settings.discount,
                file=self._file(context),
            )
        return self.replays[context]

    def _file(self, context: int) -> Path | None:
        name = REPLAY_FILES.format(context=context)
        return self.directory / name if self.directory else None

    def state_dict(self) -> dict[str, Any]:
        """How much each replay memory's file holds, and the rows that are in none yet."""
        return {
            "broken": self._broken,
            "replays": {str(context): one.state_dict() for context, one in self.replays.items()},
            "pending": {
                str(number): {
                    name: torch.from_numpy(array) for name, array in row._asdict().items()
                }
                for number, row in enumerate(self.pending)
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._broken = state["broken"]
        for context, saved in state["replays"].items():
            self._replay(int(context)).load_state_dict(saved)
        self.pending = [
            Row(**{name: tensor.numpy() for name, tensor in row.items()})
            for row in state["pending"].values()
        ]
