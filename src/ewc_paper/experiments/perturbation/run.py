"""How sensitive a trained agent is to noise on its weights (the paper's figure on Atari, panel C).

An agent learns one game. Then it plays with noise that is drawn anew at every step, with a variance
that is the same for all weights, inverse to their Fisher, or confined to weights without any.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, get_args

from ewc.perturbation import NoiseShape
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.perturbation.learner import make_noise_learner
from ewc_paper.experiments.playing import (
    ATARI_SMALL,
    MINATAR,
    Playing,
    check_game,
    make_part,
)
from ewc_paper.games.arms import SINGLE
from ewc_paper.games.worlds.game import file_name
from ewc_paper.options import option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part


@dataclass(frozen=True, kw_only=True)
class Perturbations(Playing):
    """The score of a single-game agent over the size of noise on its weights, by shape."""

    name = "perturbation"
    presets: ClassVar[Presets] = {
        "quick": {**MINATAR, "segment_steps": 20_000, "scales": (0.01, 0.05, 0.2, 0.5)},
        "laptop": {**MINATAR, "segment_steps": 40_000, "seeds": 3},
        "atari-small": {
            **ATARI_SMALL,
            "game": "RoadRunner",
            "segment_steps": 60_000,
            "seeds": 2,
        },
        # 50 million frames of Breakout, the game of the paper's figure.
        "paper": {"game": "Breakout", "segment_steps": 12_500_000},
    }

    game: str = option("minatar/breakout", "game that the agent learns", common=True)
    shapes: tuple[str, ...] = option(
        get_args(NoiseShape), "shapes of the noise", choices=get_args(NoiseShape), common=True
    )
    scales: tuple[float, ...] = option(
        (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
        "sizes of the noise: its root mean square over all weights",
        low=1e-12,
        high=1e6,
        common=True,
    )
    damping: float = option(
        1e-3, "λ of the inverse (F + λI)⁻¹, as a fraction of the mean Fisher", low=1e-12
    )
    tolerance: float = option(
        1e-6,
        "the null space is where the Fisher is at most this fraction of its mean",
        low=0,
    )
    noise_episodes: int = option(
        10, "episodes per size and shape of the noise", low=1, high=1000, common=True
    )

    def check(self) -> None:
        super().check()
        check_game(self.game, "--game")

    score_means = "mean score of the agent with noise, over all shapes and sizes"

    def score(self, run: RunDirectory) -> float | None:
        rows = [row for part in run.parts() for row in part.rows()]
        noisy = [row for row in rows if row["kind"] == "noise" and row["scale"]]
        return fmean(fmean(row["scores"]) for row in noisy) if noisy else None

    def _parts(self) -> Iterator[Part]:
        names = ("shapes", "scales", "damping", "tolerance", "noise_episodes")
        noise = {name: getattr(self, name) for name in names}
        for seed in self.all_seeds:
            config = self.part_config(SINGLE, seed, [self.game], [self.game])
            name = f"{SINGLE}-{file_name(self.game)}-seed{seed}"
            config["noise"] = noise
            yield make_part(name, config, make_noise_learner)
