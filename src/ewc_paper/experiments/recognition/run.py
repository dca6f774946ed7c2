"""How well the game is recognized from its frames alone, with switches and returns.

Games are played one after another by a random policy, or by the networks that a run of `games` has
trained one per game. Several copies are played at once, and of each step of all of them the
recognizer sees one frame, each copy's in turn: with four copies, that is the paper's every fourth
step. A copy in turn also makes the frames of a window differ as frames of one game do: successive
frames of one copy are so alike that every new screen looks like a new game.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ewc.recognition import ForgetMeNot, RecognizerConfig
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.playing import check_one_world
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import RECOGNIZER, ScheduleConfig, Settings, WorldConfig
from ewc_paper.games.evaluation import FrameStacks
from ewc_paper.games.schedule import segments
from ewc_paper.games.worlds.environments import Environments
from ewc_paper.games.worlds.game import check_name
from ewc_paper.options import option
from ewc_paper.runs.checkpoint import load_checkpoint
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.seeding import derive_seed

CHUNK = 32  # rows played between two yields
Runs = list[list[int]]  # [context, agent steps], one after another

GAMES = (
    *("Boxing", "Breakout", "CrazyClimber", "Freeway", "Krull"),
    *("Pong", "RoadRunner", "Seaquest", "SpaceInvaders", "UpNDown"),
)


@dataclass(frozen=True, kw_only=True)
class Recognition(RepeatedExperiment, WorldConfig, ScheduleConfig, RecognizerConfig):
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
    networks = _networks(directory)
    for game in games:
        if game not in networks:
            raise RunError(f"--agents: {directory} has no single-game network of {game}")
    sizes = {networks[game].config()["settings"]["size"] for game in games}
    if len(sizes) > 1:
        raise RunError(f"--agents: the networks see frames of different sizes, {sorted(sizes)}")


def make_run(config: dict[str, Any]) -> "RecognitionRun":
    options = {name: value for name, value in config.items() if name != "experiment"}
    return RecognitionRun(Recognition(**options))


class RecognitionRun:
    """Plays the segments; yields a row a segment with the contexts that its steps were taken for.

    `observed` is what the recogniser says at every step, `decided` its word at the last end of a
    window, which is what an agent may act on that hands its experience to the task.
    """

    def __init__(self, config: Recognition) -> None:
        self.config = config
        self.schedule = segments(config.games, config.visits, derive_seed(config.seed, "schedule"))
        self.recognizer = ForgetMeNot(
            levels=config.levels,
            prior=config.prior,
            window=config.window,
            wins=config.wins,
            independent=config.independent,
        )
        self.segment = self.row = self.context = 0
        self.observed: Runs = []
        self.decided: Runs = []
        self.seconds = 0.0
        self.player = self._begin_segment()

    @property
    def progress(self) -> float:
        return (self.segment + self.row / self._rows_a_segment) / len(self.schedule)

    @property
    def _rows_a_segment(self) -> int:
        return -(-self.config.segment_steps // self.config.environments)

    @property
    def _game(self) -> str:
        return self.schedule[min(self.segment, len(self.schedule) - 1)]

    def _begin_segment(self) -> "Player":
        seed = derive_seed(self.config.seed, "segment", self.segment)
        return Player(self.config, self._game, seed)

    def run(self) -> Iterator[dict[str, Any] | None]:
        while self.segment < len(self.schedule):
            for _ in range(min(CHUNK, self._rows_a_segment - self.row)):
                self._recognize(self.player.frame(self.row))
                self.player.step()
                self.row += 1
            yield self._end_segment() if self.row == self._rows_a_segment else None

    def _recognize(self, frame: NDArray[np.uint8]) -> None:
        started = time.thread_time()  # of this thread alone, whatever else the machine does
        task = self.recognizer.observe(frame)
        self.seconds += time.thread_time() - started
        if self.recognizer.decided:
            self.context = task
        _extend(self.observed, task, self.config.environments)
        _extend(self.decided, self.context, self.config.environments)

    def _end_segment(self) -> dict[str, Any]:
        steps = self._rows_a_segment * self.config.environments
        row = {
            "kind": "segment",
            "segment": self.segment,
            "game": self._game,
            "steps": steps,
            "observed": self.observed,
            "decided": self.decided,
            "milliseconds": 1e3 * self.seconds / steps,
        }
        self.segment += 1
        self.row, self.seconds, self.observed, self.decided = 0, 0.0, [], []
        if self.segment < len(self.schedule):
            self.player = self._begin_segment()
        return row

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "recognizer": self.recognizer.state_dict(),
            "player": self.player.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.recognizer.load_state_dict(state["recognizer"])
        if self.segment < len(self.schedule):
            self.player = self._begin_segment()
            self.player.load_state_dict(state["player"])


_PLAIN = ("segment", "row", "context", "observed", "decided", "seconds")


class Player:
    """Copies of one game, played at random or by the network trained on it."""

    def __init__(self, config: Recognition, game: str, seed: int) -> None:
        self.random = np.random.default_rng(derive_seed(seed, "actions"))
        self.epsilon = config.epsilon
        part = _networks(config.agents)[game] if config.agents else None
        size = part.config()["settings"]["size"] if part else config.size
        self.environments = Environments(
            game, config.environments, seed=seed, size=size, max_steps=config.max_episode_steps
        )
        self.agent = _load_agent(part, self.environments) if part else None
        history = self.agent.settings.history if self.agent else 1
        self.stacks = FrameStacks(config.environments, self.environments.frame_shape, history)
        self._see()

    def frame(self, row: int) -> NDArray[np.uint8]:
        """The frame that the recogniser sees in this row: each copy's in turn."""
        frames: NDArray[np.uint8] = self.environments.frames
        one: NDArray[np.uint8] = frames[row % len(frames)]
        return one

    def step(self) -> None:
        self.environments.step(self._actions())
        self._see()

    def _see(self) -> None:
        self.stacks.push(self.environments.frames, self.environments.fresh)

    def _actions(self) -> NDArray[np.int64]:
        if self.agent is not None:
            return self.agent.act(self.stacks.states, self.epsilon, self.random)
        environments = self.environments
        return self.random.integers(0, environments.num_actions, len(environments.frames))

    def state_dict(self) -> dict[str, Any]:
        return {
            "environments": self.environments.state_dict(),
            "stacks": torch.tensor(self.stacks.states),
            "random": self.random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.environments.load_state_dict(state["environments"])
        self.stacks.states[:] = state["stacks"].numpy()
        self.random.bit_generator.state = state["random"]


def _networks(directory: str) -> dict[str, RunDirectory]:
    """By game, the first part of a run that was trained on it alone."""
    networks: dict[str, RunDirectory] = {}
    for part in RunDirectory(directory).parts():
        games = part.config().get("games", [])
        if len(games) == 1:
            networks.setdefault(games[0], part)
    return networks


def _load_agent(part: RunDirectory, environments: Environments) -> Agent:
    settings = Settings(**part.config()["settings"])
    channels, height, width = environments.frame_shape
    shape = (settings.history * channels, height, width)
    agent = Agent(settings, shape, environments.num_actions, seed=0)
    checkpoint = load_checkpoint(part.path)
    if checkpoint is None:
        raise RunError(f"--agents: {part.path} has no checkpoint yet")
    agent.load_state_dict(checkpoint["state"]["agent"])
    return agent


def _extend(runs: Runs, context: int, steps: int) -> None:
    if runs and runs[-1][0] == context:
        runs[-1][1] += steps
    else:
        runs.append([context, steps])
