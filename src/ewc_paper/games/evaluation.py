"""Tests of an agent on all games of a run, without learning."""

from collections.abc import Callable
from pathlib import Path

from ewc_paper.games.agent import Agent
from ewc_paper.games.clips import write_clip
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.episodes import play_episodes
from ewc_paper.games.worlds.game import Game, make_game
from ewc_paper.seeding import derive_seed


class Evaluation:
    """Plays some episodes of each game.

    Args:
        games: the games.
        config: how many episodes, how long, and with how much exploration.
        seed: where all randomness comes from, together with the number of segments.
    """

    def __init__(self, games: list[str], config: AgentConfig, seed: int) -> None:
        self._games, self._config, self._seed = games, config, seed
        self._copies: dict[str, list[Game]] = {}

    def scores(
        self,
        agent: Agent,
        recognize_in: Callable[[str], Recognize],
        *,
        segments: int,
        clips_in: Path | None = None,
    ) -> dict[str, list[float]]:
        """Return the scores of the episodes of each game.

        Args:
            agent: what plays.
            recognize_in: returns how the contexts of a game are recognized.
            segments: number of segments that the agent was trained for.
            clips_in: directory for a clip of each game; no clips by default.
        """
        scores: dict[str, list[float]] = {}
        for game in self._games:
            episodes = play_episodes(
                agent,
                self._copies_of(game),
                recognize_in(game),
                epsilon=self._config.test_epsilon,
                seed=derive_seed(self._seed, "test", segments, game),
            )
            scores[game] = episodes.scores
            if clips_in is not None:
                write_clip(clips_in, game, episodes.first_frames)
        return scores

    def _copies_of(self, game: str) -> list[Game]:
        """Return one copy per episode; they are kept, because loading a game takes long."""
        if game not in self._copies:
            config = self._config
            self._copies[game] = [
                make_game(game, config.size, config.max_episode_steps)
                for _ in range(config.test_episodes)
            ]
        return self._copies[game]
