"""The rows that a run reports: tests, training statistics and consolidations."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ewc.fisher.scaling import trace
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.evaluation import Evaluation
from ewc_paper.games.gated_agent import AnyAgent
from ewc_paper.games.landmarks import Landmarks
from ewc_paper.games.replay import Replay
from ewc_paper.games.scores import normalized
from ewc_paper.games.segment_clock import SegmentClock
from ewc_paper.games.training_statistics import TrainingStatistics

MetricsRow = dict[str, Any]


def untrained_row(scores: Mapping[str, list[float]]) -> MetricsRow:
    """Return the row of a test before any training.

    Args:
        scores: the score of each episode, by game.
    """
    return {
        "kind": "test",
        "step": 0,
        "segment": 0,
        "game": None,
        "steps_in": dict.fromkeys(scores, 0),
        "scores": dict(scores),
        "normalized": {
            game: normalized(game, float(np.mean(values))) for game, values in scores.items()
        },
        "agreement": {},
        "regret": {},
    }


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
        self, clock: SegmentClock, agent: AnyAgent, games: list[str], config: AgentConfig, seed: int
    ) -> None:
        self._clock, self._agent, self._games, self._config = clock, agent, games, config
        self._evaluation = Evaluation(config, seed)
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

    def record_consolidation(self, fisher: Mapping[str, Tensor]) -> None:
        """Record that the present context was consolidated with this Fisher."""
        self._waiting.append(
            {
                "kind": "fisher",
                "step": self._clock.agent_steps,
                "context": self._agent.context,
                "trace": trace(fisher),
                "largest": max(float(tensor.max()) for tensor in fisher.values()),
                "wells": len(self._agent.tasks),
            }
        )

    def store_landmark(self, replays: Mapping[int, Replay]) -> None:
        """Store what the states of the current game are worth, because its segment has ended.

        The states come from the replay memory of the context that most of the segment was played
        in, and are valued in that context. The context of the last step may be another one.

        Args:
            replays: the replay memory of each context that has one.
        """
        played = [one for one in self.statistics.end_segment() if one in replays]
        if played:
            with self._agent.averaged():
                self._landmarks.store(self._clock.game, self._agent, replays[played[0]], played[0])

    def test(self, recognize_in: Callable[[str], Recognize]) -> MetricsRow:
        """Play all games without learning, measure the drift, and return the row.

        After the last segment a clip of each game is stored as well.
        """
        clock = self._clock
        with self._agent.averaged():
            played = self._evaluation.play(
                self._agent,
                recognize_in,
                episodes={game: self._episodes_of(game) for game in self._games},
                test=clock.segment,
                clips_in=self.directory if clock.over else None,
            )
            drift = self._landmarks.drift(self._agent)
        self.tests += 1
        return {
            **untrained_row({game: one.scores for game, one in played.items()}),
            "step": clock.agent_steps,
            "segment": clock.segment,
            "game": clock.previous_game,
            "steps_in": {game: clock.agent_steps_in(game) for game in self._games},
            "agreement": {game: one.agreement for game, one in drift.items()},
            "regret": {game: one.regret for game, one in drift.items()},
            "recognized": {game: one.recognized for game, one in played.items()},
        }

    def _episodes_of(self, game: str) -> int:
        """Return the number of episodes in a test: more where a table needs the score."""
        clock, config = self._clock, self._config
        left = game == clock.previous_game
        returns = not clock.over and game == clock.game and clock.agent_steps_in(game) > 0
        in_table = left or returns or clock.over
        return max(config.test_episodes, config.table_episodes if in_table else 0)

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
