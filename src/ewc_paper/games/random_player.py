"""A player of uniformly random actions: what a score is worth starts from its score.

It is measured by the same code as an agent, in the same games with the same limit of steps. So it
also is the reference where episodes are cut short, and published scores are none.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ewc_paper.games.config import AgentConfig
from ewc_paper.games.evaluation import Evaluation
from ewc_paper.games.measurements import MetricsRow, untrained_row
from ewc_paper.games.worlds.game import make_game

RANDOM_EPISODES = (
    100  # at least so many per game and seed: they are cheap, and all skill needs them
)
AT_ONCE = 10  # episodes between two yields


def make_random(config: dict[str, Any]) -> "RandomMeasurement":
    """Make the measurement of one part of a run: its seed, its one game and its settings."""
    (game,) = config["games"]
    return RandomMeasurement(game, config["seed"], AgentConfig(**config["settings"]))


class RandomPlayer:
    """Takes uniformly random actions, in whatever state and context."""

    context = 0

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def act_in(self, context: int) -> None:
        """Do nothing: all contexts are the same."""

    def act(
        self, states: NDArray[np.uint8], epsilon: float, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return one random action per state."""
        return random.integers(0, self.num_actions, len(states))


class RandomMeasurement:
    """Plays one game at random and yields a single row, like that of a test.

    Args:
        game: the game.
        seed: where all randomness comes from.
        config: how the game is played in tests.
    """

    def __init__(self, game: str, seed: int, config: AgentConfig) -> None:
        self.game, self.episodes = game, max(RANDOM_EPISODES, config.table_episodes)
        self._player = RandomPlayer(make_game(game, config.size).num_actions)
        self._evaluation = Evaluation(config, seed)
        self.scores: list[float] = []
        self.reported = False

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return len(self.scores) / self.episodes

    def run(self) -> Iterator[MetricsRow | None]:
        """Play all episodes; yield None in between, and the row of all scores at the end."""
        while len(self.scores) < self.episodes:
            self.scores += self._play(min(AT_ONCE, self.episodes - len(self.scores)))
            yield None
        if not self.reported:
            self.reported = True
            yield untrained_row({self.game: self.scores})

    def _play(self, count: int) -> list[float]:
        """Return the scores of the next episodes."""
        played = self._evaluation.play(
            self._player,
            lambda game: lambda frame: 0,
            episodes={self.game: count},
            test=len(self.scores),
        )
        return played[self.game].scores

    def state_dict(self) -> dict[str, Any]:
        return {"scores": list(self.scores), "reported": self.reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores, self.reported = list(state["scores"]), state["reported"]
