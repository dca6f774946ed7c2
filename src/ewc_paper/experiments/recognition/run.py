"""How well the game is recognized from its frames alone, with switches and returns.

Games are played one after another by a random policy, or by the networks that a run of `games` has
trained one per game. Several copies are played at once, and of each step of all of them the
recognizer sees one frame, each copy's in turn: with four copies, that is the paper's every fourth
step. A copy in turn also makes the frames of a window differ as frames of one game do: successive
frames of one copy are so alike that every new screen looks like a new game.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from ewc.recognition import RecognizerConfig
from ewc_paper.errors import RunError
from ewc_paper.experiments.context_match import ContextUse, match_contexts
from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.playing import check_one_world
from ewc_paper.experiments.recognition.learner import make_run, networks_by_game
from ewc_paper.games.config import RECOGNIZER, RecognitionConfig, ScheduleConfig, WorldConfig
from ewc_paper.games.worlds.game import check_name
from ewc_paper.options import option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part

GAMES = (
    *("Boxing", "Breakout", "CrazyClimber", "Freeway", "Krull"),
    *("Pong", "RoadRunner", "Seaquest", "SpaceInvaders", "UpNDown"),
)


@dataclass(frozen=True, kw_only=True)
class Recognition(
    RepeatedExperiment, WorldConfig, ScheduleConfig, RecognitionConfig, RecognizerConfig
):
    """How well ten Atari games are told apart by their frames, with switches and returns."""

    name = "recognition"
    presets: ClassVar[Presets] = {
        "quick": {**RECOGNIZER, "size": 42, "visits": 2, "segment_steps": 800},
        "laptop": {**RECOGNIZER, "size": 42, "segment_steps": 2_000, "seeds": 3},
        "paper": {**RECOGNIZER, "visits": 10, "segment_steps": 1_250_000},
    }

    games: tuple[str, ...] = option(GAMES, "games to tell apart", common=True)
    visits: int = option(4, "segments per game", low=1, high=10_000, common=True)
    agents: str | None = option(
        None,
        "run directory of `games` whose single-game networks play, each with the frames that it "
        "was trained on; random actions if not given",
        common=True,
    )
    epsilon: float = option(0.05, "fraction of random actions of the networks", low=0, high=1)

    def check(self) -> None:
        super().check()
        if len(self.games) < 2:
            raise RunError(f"--games must name at least 2 games, got {len(self.games)}")
        check_one_world(self.games)
        for game in self.games:
            _check_playable(game)
        if self.agents is not None:
            _check_agents(self.agents, self.games)

    score_means = "steps recognized correctly, in %, mean over seeds"

    def score(self, run: RunDirectory) -> float | None:
        found = [
            match_contexts(
                ContextUse(context, row["game"], steps)
                for row in part.rows()
                for context, steps in row["observed"]
            )
            for part in run.parts()
        ]
        correct = [match.correct for match in found if match is not None]
        return 100 * fmean(correct) if correct else None

    def _parts(self) -> Iterator[Part]:
        config = {name: value for name, value in self.to_dict().items() if name != "seeds"}
        for seed in self.all_seeds:
            yield Part(f"seed{seed}", config | {"seed": seed}, make_run)


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
