"""What the experiments on games share.

These are the options of the agent with their small presets, the config of one network, and which
game a recognized context belongs to.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import RepeatedExperiment
from ewc_paper.figures.names import game_name
from ewc_paper.games.config import (
    AgentConfig,
    ExplorationConfig,
    MeasurementConfig,
    QFisherConfig,
    QLearningConfig,
    ScheduleConfig,
    WorldConfig,
    settings_of,
)
from ewc_paper.games.replay import REPLAY_PATTERN, replay_bytes
from ewc_paper.games.scores import normalized
from ewc_paper.runs.directory import MetricsRow
from ewc_paper.runs.engine import Part
from ewc_paper.runs.loop import Resumable

# What the small worlds share: frames of 10x10, games of minutes, one network for all of them.
MINATAR: dict[str, Any] = {
    "history": 1,
    "environments": 8,
    "max_episode_steps": 2_500,
    "network": "minatar",
    "n_step": 3,
    "target_every": 1_000,
    "replay_capacity": 40_000,
    "min_history": 1_000,
    "optimizer": "adam",
    "lr": 1e-3,
    "epsilon": 0.02,
    "epsilon_start": 1_000,
    "epsilon_end": 6_000,
    "report_every": 2_000,
}
# In addition, for several of their games one after another.
MINATAR_TASKS: dict[str, Any] = {
    "network": "minatar-wide",  # so that half of it is a network
    "gates": 0.5,
    "filter_gates": 0.5,
    "fresh_optimizer": True,
    "strength": 1.0,
    "floor": 0.1,
    "normalize": 400.0,
    "ewc_start": 0,
    "recognizer": "screens",
    "levels": 2,  # a cell is empty or not
    "usual": 0.5,  # aliens in the rows of the bricks look a little like bricks
}

# Real Atari in about an hour: small frames, a small network, and returns over several steps.
ATARI_SMALL: dict[str, Any] = {
    "size": 42,
    "environments": 8,
    "max_episode_steps": 1_500,
    "network": "small",
    "n_step": 6,
    "update_every": 2,
    "target_every": 1_000,
    "replay_capacity": 100_000,
    "min_history": 1_600,
    "optimizer": "adam",
    "lr": 2e-4,
    "adam_epsilon": 1e-5,  # with rare rewards the gradients are smaller than Rainbow's ε
    "average_span": 1_000,
    "epsilon": 0.05,
    "epsilon_start": 1_600,
    "epsilon_end": 8_000,
    "test_epsilon": 0.05,  # a policy that never errs can face the same wall forever
    "report_every": 2_000,
}
# In addition, for several games one after another.
ATARI_SMALL_TASKS: dict[str, Any] = {
    "network": "small-wide",
    "gates": 0.5,
    "filter_gates": 0.5,
    "fresh_optimizer": True,
    "strength": 30.0,
    "floor": 0.05,
    "normalize": 1_000.0,
    "ewc_start": 8_000,  # longer than a screen lasts that the recognizer takes for a game
    "recognizer": "screens",
    "levels": 32,
}


@dataclass(frozen=True, kw_only=True)
class Playing(
    RepeatedExperiment,
    WorldConfig,
    QLearningConfig,
    ExplorationConfig,
    QFisherConfig,
    ScheduleConfig,
    MeasurementConfig,
):
    """Agents that learn games, each described by `part_config`.

    The groups are those that an agent of one game uses; with several games in a row, the
    experiment adds those on consolidation and recognition.
    """

    def check(self) -> None:
        super().check()
        if self.epsilon_end < self.epsilon_start:
            raise RunError(
                f"--epsilon-end must be at least --epsilon-start = {self.epsilon_start}, "
                f"got {self.epsilon_end}"
            )
        self._check_replay()

    def headline(self, row: MetricsRow) -> str:
        """The total of a test, each game clipped at 1, or the score of the last episodes."""
        if row.get("kind") == "test":
            scores = row["normalized"].values()
            total = sum(min(1.0, float(score)) for score in scores)
            return f"after segment {row['segment']} · total {total:.2f} of {len(scores)}"
        if row.get("kind") == "train" and row["score"] is not None:
            return f"{game_name(row['game'])} · score {row['score']:.1f}"
        return super().headline(row)

    def is_milestone(self, row: MetricsRow) -> bool:
        return row.get("kind") == "test"

    def scalars(self, row: MetricsRow) -> dict[str, float]:
        scores = row.get("normalized", {}).items()
        named = {f"normalized_{game_name(game)}": value for game, value in scores}
        return named | super().scalars(row)

    @property
    def rows_per_segment(self) -> int:
        """Steps of each copy of a game in a segment."""
        return -(-self.segment_steps // self.environments)

    @property
    def _copies(self) -> str:
        return f"{self.environments} copies of the game (--environments)"

    def _check_replay(self) -> None:
        """Refuse settings under which no transition is ever whole, or none is learned from."""
        rows = -(-self.replay_capacity // self.environments)
        limits = {
            f"--max-episode-steps = {self.max_episode_steps}": self.max_episode_steps,
            f"--segment-steps = {self.segment_steps} in {self._copies}": self.rows_per_segment,
            f"--replay-capacity = {self.replay_capacity} in {self._copies}": rows,
        }
        shortest = min(limits, key=lambda option: limits[option])
        if self.n_step >= limits[shortest]:
            raise RunError(
                f"{shortest} leaves each copy {limits[shortest]} steps, which must be more than "
                f"--n-step = {self.n_step}"
            )
        held = (rows - self.n_step) * self.environments
        if self.min_history > held:
            raise RunError(
                f"--min-history must be at most {held}, the transitions that --replay-capacity "
                f"= {self.replay_capacity} holds; got {self.min_history}"
            )

    def part_config(
        self, arm: str, seed: int, games: Sequence[str], schedule: Sequence[str]
    ) -> dict[str, Any]:
        """What one network is made from.

        Args:
            arm: how it learns, a key of `games.config.ARMS`.
            seed: the seed of its random numbers.
            games: the games that it is tested on.
            schedule: the game of each segment that it is trained on.
        """
        return {
            "arm": arm,
            "seed": seed,
            "games": list(games),
            "schedule": list(schedule),
            "settings": settings_of(arm, asdict(self)),
        }


def check_game(game: str, flag: str) -> None:
    """Refuse a game that there is no score to compare with."""
    try:
        normalized(game, 0.0)
    except ValueError as error:
        raise RunError(f"{flag}: {error}") from None


def check_one_world(games: Sequence[str]) -> None:
    """Refuse to mix Atari with MinAtar, whose frames and actions are others."""
    minatar = [game for game in games if game.startswith("minatar/")]
    if 0 < len(minatar) < len(games):
        raise RunError(f"--games must be all of Atari or all of MinAtar, got {' '.join(games)}")


def make_part(
    name: str, config: dict[str, Any], make: Callable[[dict[str, Any]], Resumable]
) -> Part:
    """One network of a run, with what its replay memories take on disk while it runs.

    Args:
        name: the part's name.
        config: the network as `part_config` describes it.
        make: the function that makes its learner.
    """
    needed = replay_bytes(AgentConfig(**config["settings"]), config["schedule"])
    return Part(
        name,
        config,
        make,
        disk_bytes=needed,
        disk_advice="a smaller --replay-capacity",
        temporary_files=(REPLAY_PATTERN,),
        flush_denormals=True,  # the moments of dead units decay to them
    )


class ContextUse(NamedTuple):
    """Agent steps in which a game was played and the recognizer reported a context."""

    context: int
    game: str
    steps: int


class ContextMatch(NamedTuple):
    """How well contexts and games match."""

    game_of: dict[int, str]  # by context: the game that it belongs to
    correct: float  # fraction of steps in a context that belongs to the game being played


def match_contexts(uses: Iterable[ContextUse]) -> ContextMatch | None:
    """Assign each context to the game that was played in most of its steps; None without steps.

    A context is what the recognizer takes for one game.
    """
    steps: dict[int, Counter[str]] = defaultdict(Counter)
    for context, game, count in uses:
        steps[context][game] += count
    total = sum(games.total() for games in steps.values())
    if total == 0:
        return None
    game_of = {context: games.most_common(1)[0][0] for context, games in steps.items()}
    correct = sum(games[game_of[context]] for context, games in steps.items())
    return ContextMatch(game_of, correct / total)
