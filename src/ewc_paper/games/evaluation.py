"""Tests of a player on all games of a run, without learning."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ewc_paper.games.clips import write_clip
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.episodes import Episodes, Player, play_episodes
from ewc_paper.games.worlds.game import Game, make_game
from ewc_paper.seeding import derive_seed


class Evaluation:
    """Plays some episodes of each game.

    Args:
        config: how long an episode is, and with how much exploration it is played.
        seed: where all randomness comes from, together with the number of the test.
    """

    def __init__(self, config: AgentConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        self._copies: dict[str, list[Game]] = {}

    def play(
        self,
        player: Player,
        recognize_in: Callable[[str], Recognize],
        *,
        episodes: Mapping[str, int],
        test: int,
        clips_in: Path | None = None,
    ) -> dict[str, Episodes]:
        """Return the episodes of each game.

        Args:
            player: what plays.
            recognize_in: returns how the context is recognized in one episode of a game.
            episodes: number of episodes of each game.
            test: number of the test.
            clips_in: directory for a clip of each game; no clips by default.
        """
        played: dict[str, Episodes] = {}
        for game, count in episodes.items():
            played[game] = play_episodes(
                player,
                self._copies_of(game, count),
                [recognize_in(game) for _ in range(count)],
                history=self._config.history,
                epsilon=self._config.test_epsilon,
                seed=derive_seed(self._seed, "test", test, game),
            )
            if clips_in is not None:
                write_clip(clips_in, game, played[game].first_frames)
        return played

    def _copies_of(self, game: str, count: int) -> list[Game]:
        """Return one copy per episode; they are kept, because loading a game takes long."""
        copies, config = self._copies.setdefault(game, []), self._config
        while len(copies) < count:
            copies.append(make_game(game, config.size, config.max_episode_steps))
        return copies[:count]
