"""The rows that a run reports: tests, training statistics and consolidations."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ewc.fisher.scaling import trace
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.evaluation import Evaluation
from ewc_paper.games.landmarks import Landmarks
from ewc_paper.games.replay import Replay
from ewc_paper.games.scores import normalized
from ewc_paper.games.segment_clock import SegmentClock
from ewc_paper.games.training_statistics import TrainingStatistics

MetricsRow = dict[str, Any]


class Measurements:
    """Measures an agent while it is trained.

    Rows of training and consolidation wait here until `waiting_rows` yields them. Those that still
    wait are part of the state.

    Args:
        clock: where the run is in its schedule.
        agent: the agent that is trained.
        games: the games that it is tested on.
        config: how it is tested.
        seed: where all randomness of the tests comes from.
    """

    def __init__(
        self, clock: SegmentClock, agent: Agent, games: list[str], config: AgentConfig, seed: int
    ) -> None:
        self._clock, self._agent, self._games = clock, agent, games
        self._evaluation = Evaluation(games, config, seed)
        self._landmarks = Landmarks()
        self._waiting: list[MetricsRow] = []
        self.statistics = TrainingStatistics()
        self.tests = 0  # number of tests so far
        self.directory: Path | None = None  # for clips of the last test

    def waiting_rows(self) -> Iterator[MetricsRow]:
        """Yield the rows recorded since the last call, oldest first."""
        while self._waiting:
            yield self._waiting.pop(0)

    def record_training(self) -> None:
        """Record the training statistics since the last such row."""
        game = self._clock.game
        self._waiting.append(
            {
                "kind": "train",
                "step": self._clock.agent_steps,
                "segment": self._clock.segment,
                "game": game,
                "steps_in_game": self._clock.agent_steps_in(game),
                "context": self._agent.context,
                **self.statistics.take(),
            }
        )

    def record_consolidation(self, fisher: Mapping[str, Tensor], silenced_units: int) -> None:
        """Record that the present context was consolidated with this Fisher."""
        self._waiting.append(
            {
                "kind": "fisher",
                "step": self._clock.agent_steps,
                "context": self._agent.context,
                "trace": trace(fisher),
                "largest": max(float(tensor.max()) for tensor in fisher.values()),
                "wells": len(self._agent.memory.tasks),
                "silenced": silenced_units,
            }
        )

    def store_landmark(self, replay: Replay) -> None:
        """Store what the states of the current game are worth, because it is being left."""
        with self._agent.averaged():
            self._landmarks.store(self._clock.game, self._agent, replay)

    def test(self, recognize_in: Callable[[str], Recognize]) -> MetricsRow:
        """Play all games without learning, measure the drift, and return the row.

        After the last segment a clip of each game is stored as well.
        """
        clock = self._clock
        with self._agent.averaged():
            scores = self._evaluation.scores(
                self._agent,
                recognize_in,
                segments=clock.segment,
                clips_in=self.directory if clock.over else None,
            )
            drift = self._landmarks.drift(self._agent)
        self.tests += 1
        return {
            "kind": "test",
            "step": clock.agent_steps,
            "segment": clock.segment,
            "game": clock.previous_game,
            "steps_in": {game: clock.agent_steps_in(game) for game in self._games},
            "scores": scores,
            "normalized": {
                game: normalized(game, float(np.mean(values))) for game, values in scores.items()
            },
            "agreement": {game: one.agreement for game, one in drift.items()},
            "regret": {game: one.regret for game, one in drift.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "waiting": list(self._waiting),
            "tests": self.tests,
            "statistics": self.statistics.state_dict(),
            "landmarks": self._landmarks.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._waiting = list(state["waiting"])
        self.tests = state["tests"]
        self.statistics.load_state_dict(state["statistics"])
        self._landmarks.load_state_dict(state["landmarks"])
