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
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.playing import ContextUse, check_one_world, match_contexts
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import (
    PAPERS_LEVELS,
    AgentConfig,
    RecognitionConfig,
    ScheduleConfig,
    WorldConfig,
)
from ewc_paper.games.contexts import make_recognizer
from ewc_paper.games.schedule import SegmentClock, segments
from ewc_paper.games.worlds.game import Frame, RunningGame, check_name
from ewc_paper.options import option, values_of
from ewc_paper.runs.checkpoint import load_checkpoint
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.seeding import derive_seed

CHUNK = 32  # rows played between two yields
ContextSpans = list[list[int]]  # [context, agent steps] of successive spans in one context
Options = dict[str, Any]  # the options of `recognition`, by name

GAMES = (
    *("Boxing", "Breakout", "CrazyClimber", "Freeway", "Krull"),
    *("Pong", "RoadRunner", "Seaquest", "SpaceInvaders", "UpNDown"),
)

# The recognizer that opens one context per game; visits must last for its shortest one.
SCREENS: Options = {"recognizer": "screens", "levels": 32, "size": 42}


@dataclass(frozen=True, kw_only=True)
class Recognition(RepeatedExperiment, WorldConfig, ScheduleConfig, RecognitionConfig):
    """The options, the networks to train and the score."""

    presets: ClassVar[Presets] = {
        "quick": {**SCREENS, "visits": 2, "segment_steps": 1_200},
        "laptop": {**SCREENS, "segment_steps": 2_000, "seeds": 3},
        "paper": {"levels": PAPERS_LEVELS, "visits": 10, "segment_steps": 1_250_000},
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
        matches = [
            match_contexts(
                ContextUse(context, row["game"], steps)
                for row in part.rows()
                for context, steps in row["observed"]
            )
            for part in run.parts()
        ]
        correct = [match.correct for match in matches if match is not None]
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


def make_run(config: Options) -> "RecognitionRun":
    """Make the learner of one part of a run, from all options of `recognition`."""
    return RecognitionRun(config)


class RecognitionRun:
    """Plays the segments of a schedule, and yields the recognized contexts of each as one row.

    `observed` is what the recognizer says at every step. `decided` is what it said at the end of
    the last window that had a winner; this is what an agent would act on.
    """

    def __init__(self, config: Options) -> None:
        self.config, self.seed = config, config["seed"]
        schedule = segments(config["games"], config["visits"], derive_seed(self.seed, "schedule"))
        self.clock = SegmentClock(schedule, config["segment_steps"], config["environments"])
        self.recognizer = make_recognizer(config)
        self.context = 0  # the last one decided
        self.observed: ContextSpans = []
        self.decided: ContextSpans = []
        self.seconds = 0.0  # of recognition in the current segment
        self.player = self._start_game()

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return self.clock.progress

    def run(self) -> Iterator[dict[str, Any] | None]:
        """Play all segments; yield one row per segment, and None in between."""
        while not self.clock.over:
            for _ in range(min(CHUNK, self.clock.rows_left)):
                self._recognize(self.player.game.frame_in_turn(self.clock.row))
                self.player.step()
                self.clock.tick()
            yield None if self.clock.rows_left else self._end_segment()

    def _recognize(self, frame: Frame) -> None:
        started = time.thread_time()  # of this thread alone: other processes do not count
        context = self.recognizer.observe(frame)
        self.seconds += time.thread_time() - started
        if self.recognizer.decided:
            self.context = context
        _extend(self.observed, context, self.clock.copies)
        _extend(self.decided, self.context, self.clock.copies)

    def _end_segment(self) -> dict[str, Any]:
        """Return the row of the current segment, and start the next."""
        agent_steps = self.clock.row * self.clock.copies
        row = {
            "kind": "segment",
            "segment": self.clock.segment,
            "game": self.clock.game,
            "steps": agent_steps,
            "observed": self.observed,
            "decided": self.decided,
            "milliseconds": 1e3 * self.seconds / agent_steps,
        }
        self.seconds, self.observed, self.decided = 0.0, [], []
        self.clock.next_segment()
        if not self.clock.over:
            self.player = self._start_game()
        return row

    def _start_game(self) -> "Player":
        seed = derive_seed(self.seed, "segment", self.clock.segment)
        return Player(self.config, self.clock.game, seed)

    def state_dict(self) -> dict[str, Any]:
        return {
            "clock": self.clock.state_dict(),
            "recognizer": self.recognizer.state_dict(),
            **{name: getattr(self, name) for name in _PLAIN},
            "player": {} if self.clock.over else self.player.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of a run with the same options."""
        self.clock.load_state_dict(state["clock"])
        self.recognizer.load_state_dict(state["recognizer"])
        for name in _PLAIN:
            setattr(self, name, state[name])
        if not self.clock.over:
            self.player = self._start_game()
            self.player.load_state_dict(state["player"])


_PLAIN = ("context", "observed", "decided", "seconds")


class Player:
    """Plays copies of one game at random, or with the network that was trained on it.

    Args:
        config: the options of the run.
        game: the name of the game.
        seed: where all randomness comes from.
    """

    def __init__(self, config: Options, game: str, seed: int) -> None:
        part = networks_by_game(config["agents"])[game] if config["agents"] else None
        settings = part.config()["settings"] if part else {"size": config["size"], "history": 1}
        self.game = RunningGame(
            game,
            config["environments"],
            seed=seed,
            size=settings["size"],
            max_episode_steps=config["max_episode_steps"],
            history=settings["history"],
            sticky=config.get("sticky", 0.0),
        )
        self.agent = _load_agent(part, self.game) if part else None
        self.epsilon = config["epsilon"]
        self.random = np.random.default_rng(derive_seed(seed, "actions"))

    def step(self) -> None:
        """Take one action in each copy."""
        self.game.step(self._actions())

    def _actions(self) -> NDArray[np.int64]:
        if self.agent is not None:
            return self.agent.act(self.game.states, self.epsilon, self.random)
        return self.random.integers(0, self.game.num_actions, len(self.game.frames))

    def state_dict(self) -> dict[str, Any]:
        return {"game": self.game.state_dict(), "random": self.random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.game.load_state_dict(state["game"])
        self.random.bit_generator.state = state["random"]


def networks_by_game(directory: str) -> dict[str, RunDirectory]:
    """Return, by game, the first part of a run of `games` that was trained on it alone."""
    networks: dict[str, RunDirectory] = {}
    for part in RunDirectory(directory).parts():
        games = part.config().get("games", [])
        if len(games) == 1:
            networks.setdefault(games[0], part)
    return networks


def _load_agent(part: RunDirectory, game: RunningGame) -> Agent:
    config = AgentConfig(**values_of(AgentConfig, part.config()["settings"]))
    state_shape = (config.history * game.frame_shape[0], *game.frame_shape[1:])
    agent = Agent(config, state_shape, game.num_actions, seed=0)
    checkpoint = load_checkpoint(part.path)
    if checkpoint is None:
        raise RunError(f"--agents: {part.path} has no checkpoint yet")
    agent.load_state_dict(checkpoint["state"]["agent"])
    return agent


def _extend(spans: ContextSpans, context: int, agent_steps: int) -> None:
    """Lengthen the last span, or start another if the context is a new one."""
    if spans and spans[-1][0] == context:
        spans[-1][1] += agent_steps
    else:
        spans.append([context, agent_steps])
