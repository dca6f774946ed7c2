"""How sensitive a trained agent is to noise on its weights (the paper's figure on Atari, panel C).

An agent learns one game. Then it plays with noise that is drawn anew at every step, with a variance
that is the same for all weights, inverse to their Fisher, or confined to weights without any.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, get_args

import numpy as np
from torch import Tensor, nn

from ewc.perturbation import NoiseShape, perturbed
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.playing import (
    ATARI_SMALL,
    MINATAR,
    SINGLE,
    Playing,
    check_game,
    file_name,
    make_part,
)
from ewc_paper.games.config import Settings
from ewc_paper.games.consolidation import importance
from ewc_paper.games.evaluation import play
from ewc_paper.games.learner import ContinualLearner
from ewc_paper.games.scores import normalized
from ewc_paper.games.worlds.game import make_game
from ewc_paper.options import MANY, option
from ewc_paper.runs.engine import Part
from ewc_paper.seeding import derive_seed, generator


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
        get_args(NoiseShape), "shapes of the noise", choices=get_args(NoiseShape)
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


def make_noise_learner(config: dict[str, Any]) -> "NoiseLearner":
    return NoiseLearner(
        noise=config["noise"],
        arm=config["arm"],
        seed=config["seed"],
        games=config["games"],
        schedule=config["schedule"],
        settings=Settings(**config["settings"]),
    )


class NoiseLearner(ContinualLearner):
    """Learns its game, then measures the score without noise and at every size of every shape."""

    def __init__(self, *, noise: dict[str, Any], **learner: Any) -> None:
        super().__init__(**learner)
        self.noise = noise
        self.points: list[tuple[NoiseShape, float]] = [("uniform", 0.0)]
        self.points += [(shape, scale) for scale in noise["scales"] for shape in noise["shapes"]]
        self.measured = 0

    @property
    def progress(self) -> float:
        return (super().progress + self.measured / len(self.points)) / 2

    def run(self) -> Iterator[dict[str, Any] | None]:
        yield from super().run()
        while self.measured < len(self.points):
            row = self._measure(*self.points[self.measured])
            self.measured += 1
            yield row

    @cached_property
    def _fisher(self) -> dict[str, Tensor]:
        """At the end of training, which is the same however often the run was resumed."""
        random = np.random.default_rng(derive_seed(self.seed, "noise fisher"))
        settings, replay = self.settings, self.experience.replays[self.agent.context]
        batches = (
            replay.sample(settings.batch_size, random) for _ in range(settings.fisher_batches)
        )
        return importance(self.agent, batches, random)

    def _measure(self, shape: NoiseShape, scale: float) -> dict[str, Any]:
        try:
            noise = perturbed(
                self.agent.network,
                self._fisher,
                scale,
                shape=shape,
                damping=self.noise["damping"],
                tolerance=self.noise["tolerance"],
                generator=generator(self.seed, "noise", shape, scale),
            )
        except ValueError as error:
            raise RunError(f"{error} (see --tolerance and --damping)") from error
        game, context = self.games[0], self.agent.context
        with at_every_pass(self.agent.network, noise):
            # The episodes run side by side and share each step's draw.
            played = play(
                self.agent,
                [
                    make_game(game, self.settings.size, self.settings.max_episode_steps)
                    for _ in range(self.noise["noise_episodes"])
                ],
                lambda frame: context,
                epsilon=self.settings.test_epsilon,
                seed=derive_seed(self.seed, "noise episodes"),
            )
        return {
            "kind": "noise",
            "shape": shape,
            "scale": scale,
            "scores": played.scores,
            "normalized": {game: normalized(game, float(np.mean(played.scores)))},
        }

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "measured": self.measured}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.measured = state["measured"]


@contextmanager
def at_every_pass(network: nn.Module, context: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter the context before every forward pass of the network and leave it afterwards."""

    def enter(*_: object) -> None:
        context.__enter__()

    def leave(*_: object) -> None:
        context.__exit__(None, None, None)

    handles = [
        network.register_forward_pre_hook(enter),
        network.register_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
