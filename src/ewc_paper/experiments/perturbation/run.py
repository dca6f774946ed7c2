"""How sensitive a trained agent is to noise on its weights (the paper's figure on Atari, panel C).

An agent learns one game. Then it plays with noise that is drawn anew at every step, with a variance
that is the same for all weights, inverse to their Fisher, or confined to weights without any.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

from ewc.perturbation import Shape
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.perturbation.learner import make_noise_learner
from ewc_paper.experiments.playing import (
    ATARI_SMALL,
    MINATAR,
    SINGLE,
    Playing,
    check_game,
    file_name,
    make_part,
)
from ewc_paper.options import MANY, option
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
            "game": "CrazyClimber",
            "segment_steps": 48_000,
            "seeds": 2,
        },
        # 50 million frames of Breakout, the game of the paper's figure.
        "paper": {"game": "Breakout", "segment_steps": 12_500_000},
    }

    game: str = option("minatar/breakout", "game that the agent learns")
    seeds: int = option(
        1, "number of seeds, counted from --seed; several give bands", low=1, high=MANY
    )
    shapes: tuple[str, ...] = option(
        get_args(Shape), "shapes of the noise", choices=get_args(Shape)
    )
    scales: tuple[float, ...] = option(
        (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
        "sizes of the noise: its root mean square over all weights",
        low=1e-12,
        high=1e6,
    )
    damping: float = option(
        1e-3, "λ of the inverse (F + λI)⁻¹, as a fraction of the mean Fisher", low=1e-12, high=1e12
    )
    tolerance: float = option(
        1e-6,
        "the null space is where the Fisher is at most this fraction of its mean",
        low=0,
        high=1e12,
    )
    noise_episodes: int = option(10, "episodes a point", low=1, high=1000)

    def check(self) -> None:
        super().check()
        check_game(self.game, "--game")

    def _parts(self) -> Iterator[Part]:
        names = ("shapes", "scales", "damping", "tolerance", "noise_episodes")
        noise = {name: getattr(self, name) for name in names}
        for seed in range(self.seed, self.seed + self.seeds):
            config = self.part_config(SINGLE, seed, [self.game], [self.game])
            name = f"{SINGLE}-{file_name(self.game)}-seed{seed}"
            config["noise"] = noise
            yield make_part(name, config, make_noise_learner)
