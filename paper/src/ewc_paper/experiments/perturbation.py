"""How sensitive a trained agent is to noise on its weights (the paper's figure on Atari, panel C).

An agent learns one game. Then it plays with noise that is drawn anew at every step, with a variance
that is the same for all weights, inverse to their Fisher, or confined to weights without any.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, ClassVar, get_args

import numpy as np
from rich.table import Table
from torch import Tensor, nn

from ewc.perturbation import NoiseShape, perturbed
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.playing import (
    ATARI_SMALL,
    MINATAR,
    Playing,
    check_game,
    make_part,
)
from ewc_paper.experiments.view import Layout, Paper, StoredConfig, seed_name
from ewc_paper.figures.names import game_name, in_order, listed, mean_and_deviation
from ewc_paper.figures.panel import (
    DASHED,
    DOTTED,
    LOOKS,
    Figure,
    Level,
    Look,
    Panel,
    Series,
    by_seed,
)
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import SINGLE, AgentConfig
from ewc_paper.games.evaluation import RandomMeasurement, play_episodes
from ewc_paper.games.network import QNetwork
from ewc_paper.games.scores import normalized
from ewc_paper.games.training import ContinualLearner
from ewc_paper.games.worlds.game import file_name, make_game
from ewc_paper.options import option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.runs.schema import Check, list_of, number, one_of, record, short_text, variants
from ewc_paper.seeding import derive_seed, generator


@dataclass(frozen=True, kw_only=True)
class Perturbations(Playing):
    """The options, the networks to train and the score."""

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
        fisher = self.agent.fisher(self.batches(self.agent.context, random), random)
        assert isinstance(fisher, dict)  # the arm has no wells with factors
        return fisher

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
            make_game(game, config.size, config.max_episode_steps, config.sticky)
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


SHAPE_LABELS = {
    "uniform": "uniform",
    "inverse-fisher": "inverse Fisher",
    "nullspace": "null space of the Fisher",
}


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    noise = record(shape=one_of(SHAPE_LABELS), scale=number(0), scores=list_of(number(), 1))
    return variants("kind", noise=noise, random=record(scores=list_of(number(), 1)))


LAYOUT = Layout(_row, config=record(game=short_text))

PAPER = Paper(
    "the figure on Atari, panel C",
    "A network trained on Breakout plays with noise on its weights, drawn again at every step. "
    "Noise of the same size on all weights destroys its score. Noise shaped by the inverse of the "
    "diagonal Fisher hurts far less, so the Fisher does tell which weights matter. Noise confined "
    "to the null space of the Fisher hurts about as much as inverse-Fisher noise: weights that the "
    "Fisher believes unimportant are not.",
    "The score over the size of the noise, on a logarithmic axis, one line per shape. The line of "
    "uniform noise falls first; those of inverse-Fisher and null-space noise fall later, close "
    "together.",
)

Scores = dict[str, dict[float, dict[str, float]]]  # by shape, size and seed: a mean score


def scores(run: RunDirectory) -> tuple[list[float], Scores]:
    """Return the mean score of each seed without noise, and with noise of each shape and size."""
    without_noise: list[float] = []
    with_noise: Scores = defaultdict(lambda: defaultdict(dict))
    for part in run.parts():
        for row in part.rows():
            if row["kind"] == "noise":
                mean = float(np.mean(row["scores"]))
                if row["scale"]:
                    with_noise[row["shape"]][row["scale"]][seed_name(part)] = mean
                else:
                    without_noise.append(mean)
    by_size = {shape: dict(sorted(sizes.items())) for shape, sizes in with_noise.items()}
    return without_noise, in_order(by_size, run.config().get("shapes", SHAPE_LABELS))


def random_scores(run: RunDirectory) -> list[float]:
    """Return the mean score of each seed's random player; runs of older versions have none."""
    rows = [row for part in run.parts() for row in part.rows() if row["kind"] == "random"]
    return [float(np.mean(row["scores"])) for row in rows]


def figures(run: RunDirectory) -> list[Figure]:
    """Return the score over the size of the noise, one line per shape."""
    without_noise, with_noise = scores(run)
    game = game_name(run.config()["game"])
    references = {
        "no noise": (without_noise, DASHED),
        "random player": (random_scores(run), DOTTED),
    }
    panel = Panel(
        "size of the noise (root mean square over the weights)",
        f"score in {game}",
        series=[
            Series(SHAPE_LABELS[shape], LOOKS[shape], list(sizes), by_seed(sizes), "all")
            for shape, sizes in with_noise.items()
        ],
        levels=[
            Level(label, Look("#999999", line, "", 1.0), float(np.mean(values)))
            for label, (values, line) in references.items()
            if values
        ],
        x_log=True,
    )
    title = f"Score in {game} with noise on the weights"
    caption = "One line per shape of the noise; all shapes have the same size at the same x."
    return [Figure("perturbation", title, caption, [panel])]


def result(run: RunDirectory) -> str:
    """Return up to which size of each noise at least half of the score above chance is left."""
    without_noise, with_noise = scores(run)
    if not without_noise or not with_noise:
        return ""
    chance = float(np.mean(random_scores(run) or [0.0]))
    half = (float(np.mean(without_noise)) + chance) / 2
    phrases = []
    for shape, sizes in with_noise.items():
        kept = [size for size, seeds in sizes.items() if np.mean(list(seeds.values())) >= half]
        largest = f"{max(kept):g}" if kept else "none that was tried"
        phrases.append(f"{largest} ({SHAPE_LABELS[shape]})")
    return (
        f"The largest noise with which the agent keeps at least half of its score in "
        f"{game_name(run.config()['game'])} above that of a random player: {listed(phrases)}."
    )


def table(run: RunDirectory) -> Table:
    """The scores, one row per size of the noise."""
    without_noise, with_noise = scores(run)
    table = Table("noise", title=f"score in {game_name(run.config()['game'])}")
    for shape in with_noise:
        table.add_column(SHAPE_LABELS[shape], justify="right")
    if without_noise:
        table.add_row("0", *[mean_and_deviation(without_noise)] * len(with_noise))
    if random := random_scores(run):
        table.add_row("random player", *[mean_and_deviation(random)] * len(with_noise))
    for size in sorted({size for sizes in with_noise.values() for size in sizes}):
        cells = [
            mean_and_deviation([*sizes[size].values()]) if size in sizes else ""
            for sizes in with_noise.values()
        ]
        table.add_row(f"{size:g}", *cells)
    return table
