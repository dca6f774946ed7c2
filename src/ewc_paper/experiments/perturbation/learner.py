"""An agent that learns one game and then plays it with noise on its weights."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn

from ewc.perturbation import Shape, perturbed
from ewc_paper.errors import RunError
from ewc_paper.games.config import Settings
from ewc_paper.games.consolidation import importance
from ewc_paper.games.evaluation import play
from ewc_paper.games.learner import ContinualLearner
from ewc_paper.games.scores import normalized
from ewc_paper.games.worlds.game import make_game
from ewc_paper.seeding import derive_seed, generator


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
        self.points: list[tuple[Shape, float]] = [("uniform", 0.0)]
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

    def _measure(self, shape: Shape, scale: float) -> dict[str, Any]:
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
