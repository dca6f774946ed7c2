"""An agent that learns one game and then plays it with noise on its weights."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn

from ewc.perturbation import NoiseShape, perturbed
from ewc_paper.errors import RunError
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.episodes import play_episodes
from ewc_paper.games.learner import ContinualLearner
from ewc_paper.games.network import QNetwork
from ewc_paper.games.random_player import RandomMeasurement
from ewc_paper.games.scores import normalized
from ewc_paper.games.worlds.game import make_game
from ewc_paper.seeding import derive_seed, generator


def make_noise_learner(config: dict[str, Any]) -> "NoiseLearner":
    """Make the learner of one part of a run: as in `games`, and the options of the noise."""
    return NoiseLearner(
        noise=config["noise"],
        arm=config["arm"],
        seed=config["seed"],
        games=config["games"],
        schedule=config["schedule"],
        config=AgentConfig(**config["settings"]),
    )


class NoiseLearner(ContinualLearner):
    """Learns its game, then measures the score without noise and for each shape and size of noise.

    Beside it stands a random player's.

    Args:
        noise: the options `shapes`, `scales`, `damping`, `tolerance` and `noise_episodes`.
        learner: the arguments of `ContinualLearner`.
    """

    def __init__(self, *, noise: dict[str, Any], **learner: Any) -> None:
        super().__init__(**learner)
        self.noise = noise
        self.points: list[tuple[NoiseShape, float]] = [("uniform", 0.0)]
        self.points += [(shape, scale) for scale in noise["scales"] for shape in noise["shapes"]]
        self.measured = 0  # number of points measured so far
        self.random_measured = False  # whether the random player was

    @property
    def progress(self) -> float:
        """From 0 to 1: half of it is training."""
        return (super().progress + self.measured / len(self.points)) / 2

    def run(self) -> Iterator[dict[str, Any] | None]:
        """Train, then yield the row of a random player and one row per point."""
        yield from super().run()
        if not self.random_measured:
            row = self._measure_random()
            self.random_measured = True
            yield row
        while self.measured < len(self.points):
            row = self._measure(*self.points[self.measured])
            self.measured += 1
            yield row

    @property
    def _network(self) -> QNetwork:
        assert isinstance(self.agent, Agent)  # a game alone has no gates
        return self.agent.network

    @cached_property
    def _fisher(self) -> dict[str, Tensor]:
        """The Fisher at the end of training, which is the same in a resumed run."""
        random = np.random.default_rng(derive_seed(self.seed, "noise fisher"))
        return self.agent.fisher(self.batches(self.agent.context, random), random)

    def _measure_random(self) -> dict[str, Any]:
        """Let a random player play the game under the same rules; return the row."""
        random = RandomMeasurement(self.clock.schedule[0], self.seed, self.config)
        for _ in random.run():
            pass
        return {"kind": "random", "scores": random.scores}

    def _measure(self, shape: NoiseShape, scale: float) -> dict[str, Any]:
        """Play the game with noise of this shape and size; return the row."""
        game, context, config = self.clock.schedule[0], self.agent.context, self.config
        copies = [
            make_game(game, config.size, config.max_episode_steps)
            for _ in range(self.noise["noise_episodes"])
        ]
        with at_every_pass(self._network, self._drawn_noise(shape, scale)):
            # The episodes run side by side, and all of them share the noise of a step.
            episodes = play_episodes(
                self.agent,
                copies,
                [lambda frame: context] * len(copies),
                history=config.history,
                epsilon=config.test_epsilon,
                seed=derive_seed(self.seed, "noise episodes"),
            )
        return {
            "kind": "noise",
            "shape": shape,
            "scale": scale,
            "scores": episodes.scores,
            "normalized": {game: normalized(game, float(np.mean(episodes.scores)))},
        }

    def _drawn_noise(self, shape: NoiseShape, scale: float) -> AbstractContextManager[Any]:
        """Return a context in which the weights have noise, drawn again each time."""
        try:
            return perturbed(
                self._network,
                self._fisher,
                scale,
                shape=shape,
                damping=self.noise["damping"],
                tolerance=self.noise["tolerance"],
                generator=generator(self.seed, "noise", shape, scale),
            )
        except ValueError as error:
            raise RunError(f"{error} (see --tolerance and --damping)") from error

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "measured": self.measured,
            "random_measured": self.random_measured,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.measured = state["measured"]
        self.random_measured = state["random_measured"]


@contextmanager
def at_every_pass(network: nn.Module, context: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter a context before each forward pass of the network, and leave it afterwards."""

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
