"""Games played one after another while a recognizer says which of them it sees.

Several copies of a game are played at once, and the recognizer sees one frame per step of all of
them, each copy's in turn: with four copies, that is the paper's every fourth step. Taking turns
also makes the frames of a window differ as frames of one game do: successive frames of one copy are
so alike that every new screen looks like a new game.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ewc.recognition import ForgetMeNot
from ewc_paper.errors import RunError
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import Settings
from ewc_paper.games.evaluation import FrameStacks
from ewc_paper.games.schedule import segments
from ewc_paper.games.worlds.environments import Environments
from ewc_paper.runs.checkpoint import load_checkpoint
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.seeding import derive_seed

CHUNK = 32  # rows played between two yields
Runs = list[list[int]]  # [context, agent steps], one after another
Options = dict[str, Any]  # the options of `recognition`, by name


def make_run(config: Options) -> "RecognitionRun":
    return RecognitionRun(config)


class RecognitionRun:
    """Plays the segments; yields a row a segment with the contexts that its steps were taken for.

    `observed` is what the recogniser says at every step, `decided` its word at the last end of a
    window, which is what an agent may act on that hands its experience to the task.
    """

    def __init__(self, config: Options) -> None:
        self.config = config
        self.copies: int = config["environments"]
        self.segment_steps: int = config["segment_steps"]
        order = derive_seed(config["seed"], "schedule")
        self.schedule = segments(config["games"], config["visits"], order)
        self.recognizer = ForgetMeNot(
            levels=config["levels"],
            prior=config["prior"],
            window=config["window"],
            wins=config["wins"],
            independent=config["independent"],
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
        return -(-self.segment_steps // self.copies)

    @property
    def _game(self) -> str:
        return self.schedule[min(self.segment, len(self.schedule) - 1)]

    def _begin_segment(self) -> "Player":
        seed = derive_seed(self.config["seed"], "segment", self.segment)
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
        _extend(self.observed, task, self.copies)
        _extend(self.decided, self.context, self.copies)

    def _end_segment(self) -> dict[str, Any]:
        steps = self._rows_a_segment * self.copies
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

    def __init__(self, config: Options, game: str, seed: int) -> None:
        self.random = np.random.default_rng(derive_seed(seed, "actions"))
        self.epsilon = config["epsilon"]
        part = networks_by_game(config["agents"])[game] if config["agents"] else None
        size = part.config()["settings"]["size"] if part else config["size"]
        copies, max_steps = config["environments"], config["max_episode_steps"]
        self.environments = Environments(game, copies, seed=seed, size=size, max_steps=max_steps)
        self.agent = _load_agent(part, self.environments) if part else None
        history = self.agent.settings.history if self.agent else 1
        self.stacks = FrameStacks(copies, self.environments.frame_shape, history)
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


def networks_by_game(directory: str) -> dict[str, RunDirectory]:
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
