"""How well the game is recognised from its frames alone, with switches and returns.

Games are played one after another by a random policy, or by the networks that a run of `games` has
trained one a game. Several copies are played at once, and of each step of all of them the
recogniser sees one frame, each copy's in turn: with four copies, that is the paper's every fourth
step. A copy in turn also makes the frames of a window differ as frames of one game do: successive
frames of one copy are so alike that every new screen looks like a new game.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Config, Presets
from ewc_paper.experiments.playing import check_one_world
from ewc_paper.experiments.recognition.learner import make_run, networks_by_game
from ewc_paper.games.worlds.game import check_name
from ewc_paper.options import MANY, option
from ewc_paper.runs.engine import Part

GAMES = (
    *("Boxing", "Breakout", "CrazyClimber", "Freeway", "Krull"),
    *("Pong", "RoadRunner", "Seaquest", "SpaceInvaders", "UpNDown"),
)


@dataclass(frozen=True, kw_only=True)
class Recognition(Config):
    """How well ten Atari games are told apart by their frames, with switches and returns."""

    name = "recognition"
    presets: ClassVar[Presets] = {
        "quick": {"visits": 2, "segment_steps": 800},
        "laptop": {"seeds": 3},
        "paper": {"size": 84, "visits": 10, "segment_steps": 1_250_000},
    }

    games: tuple[str, ...] = option(GAMES, "games to tell apart")
    visits: int = option(4, "segments that each game gets", low=1, high=10_000)
    segment_steps: int = option(2_000, "agent steps a segment", low=1, high=MANY)
    seeds: int = option(1, "number of seeds, counted from --seed", low=1, high=MANY)
    agents: str | None = option(
        None, "run directory of `games` whose single-game networks play; without, random actions"
    )
    epsilon: float = option(0.05, "fraction of random actions of the networks", low=0, high=1)
    environments: int = option(4, "copies of a game played at once", low=1, high=1024)
    size: int = option(42, "side of an Atari frame, if no network plays", low=36, high=210)
    max_episode_steps: int = option(
        27_000, "steps after which an episode is cut off", low=1, high=MANY
    )

    levels: int = option(8, "grey levels the recogniser tells apart", low=2, high=256)
    prior: float = option(1.0, "Dirichlet mass a pixel of the recogniser", low=1e-9, high=1e9)
    window: int = option(4, "observations a window of the recogniser", low=1, high=MANY)
    wins: int = option(2, "windows in a row that open a task", low=1, high=MANY)
    independent: float = option(
        15.0, "independent pixels that a frame counts as in the recogniser", low=1e-9, high=1e12
    )

    def check(self) -> None:
        super().check()
        if len(self.games) < 2:
            raise RunError(f"--games must name at least 2 games, got {len(self.games)}")
        check_one_world(self.games)
        for game in self.games:
            _check_playable(game)
        if self.agents is not None:
            _check_agents(self.agents, self.games)

    def _parts(self) -> Iterator[Part]:
        for seed in range(self.seed, self.seed + self.seeds):
            yield Part(f"seed{seed}", self.to_dict() | {"seed": seed}, make_run)


def _check_playable(game: str) -> None:
    """Refuse a game that cannot be played here; unlike in `games` it needs no known score."""
    try:
        check_name(game)
    except (ValueError, ImportError) as error:
        raise RunError(f"--games: {error}") from None


def _check_agents(directory: str, games: tuple[str, ...]) -> None:
    """Refuse networks that do not play all the games, or see frames of different sizes."""
    networks = networks_by_game(directory)
    for game in games:
        if game not in networks:
            raise RunError(f"--agents: {directory} has no single-game network of {game}")
    sizes = {networks[game].config()["settings"]["size"] for game in games}
    if len(sizes) > 1:
        raise RunError(f"--agents: the networks see frames of different sizes, {sorted(sizes)}")
