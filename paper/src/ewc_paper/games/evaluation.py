"""Tests and measurements of an agent: what is played without learning, and what a run reports.

`play_episodes` plays whole episodes with something that does not learn; `Evaluation` does so in all
games of a run, and stores clips. `RandomMeasurement` is the same for a random player, from which
skill is counted. `Landmarks` say how far a network has drifted on the games that it has left, and
`TrainingStatistics` what happened in training. `Measurements` puts all of this together, into the
rows of a run's metrics.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ewc import KroneckerFisher
from ewc.fisher.overlap import trace
from ewc_paper.games.agent import Fisher
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import ContextTracker, Recognize
from ewc_paper.games.gated_agent import AnyAgent
from ewc_paper.games.replay import Replay
from ewc_paper.games.schedule import SegmentClock
from ewc_paper.games.scores import normalized
from ewc_paper.games.worlds.game import Frame, FrameStacks, Game, file_name, make_game
from ewc_paper.seeding import derive_seed

MetricsRow = dict[str, Any]

CLIP_FRAMES = 900  # longest clip
RANDOM_EPISODES = 100  # at least, per game and seed: they are cheap, and all skill needs them
AT_ONCE = 10  # episodes of a random player between two yields
LANDMARK_STATES = 256  # states stored per game


class Player(Protocol):
    """What can play: an agent, or a random player."""

    @property
    def context(self) -> int:
        """The context that it acts in."""

    def act_in(self, context: int) -> None:
        """Act in this context from now on."""

    def act(
        self, states: NDArray[np.uint8], epsilon: float, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return one action per state [n, channels, height, width]."""


class Episodes(NamedTuple):
    """Several episodes of one game."""

    scores: list[float]  # total reward of each episode
    first_frames: list[Frame]  # all frames of the first episode
    recognized: dict[str, int]  # agent steps by context, as in rows of training


def play_episodes(
    player: Player,
    games: Sequence[Game],
    recognizers: Sequence[Recognize],
    *,
    history: int,
    epsilon: float,
    seed: int,
) -> Episodes:
    """Play one episode of each copy of a game, all at once.

    Args:
        player: plays without learning; afterwards it is in the same context as before.
        games: the copies.
        recognizers: one per copy. It returns the context of a frame and sees every frame of its
            own copy, so no episode depends on how another one was recognized.
        history: frames per state.
        epsilon: probability of a random action.
        seed: where all randomness comes from.
    """
    random = np.random.default_rng(derive_seed(seed, "test actions"))
    starts = [derive_seed(seed, "test", number) % 2**32 for number in range(len(games))]
    first = [game.reset(start) for game, start in zip(games, starts, strict=True)]
    stacks = FrameStacks(len(games), first[0].shape, history)
    stacks.push(np.stack(first), is_first=np.ones(len(games), bool))
    scores = np.zeros(len(games))
    running = np.arange(len(games))
    first_frames = [first[0]]
    context, recognized = player.context, Counter[str]()
    while len(running):
        copies = running.tolist()
        contexts = np.array([recognizers[copy](stacks.newest(copy)) for copy in copies])
        recognized.update(map(str, contexts.tolist()))
        actions = _act_by_context(player, stacks.states[running], contexts, epsilon, random)
        chosen = zip(copies, actions.tolist(), strict=True)
        steps = [games[copy].step(action) for copy, action in chosen]
        scores[running] += [step.reward for step in steps]
        stacks.push_some(running, np.stack([step.frame for step in steps]))
        if running[0] == 0:
            first_frames.append(steps[0].frame)
        running = running[[not (step.terminal or step.truncated) for step in steps]]
    player.act_in(context)
    return Episodes(scores.tolist(), first_frames, dict(recognized))


def _act_by_context(
    player: Player,
    states: NDArray[np.uint8],
    contexts: NDArray[np.int64],
    epsilon: float,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Return one action per state, with one pass of the network per context."""
    actions = np.empty(len(states), np.int64)
    for context in np.unique(contexts):
        player.act_in(int(context))
        chosen = contexts == context
        actions[chosen] = player.act(states[chosen], epsilon, random)
    return actions


class Evaluation:
    """Tests a player: plays some episodes of a game, without learning.

    Args:
        config: how long an episode is, and with how much exploration it is played.
        seed: where all randomness comes from, together with the number of the test.
    """

    def __init__(self, config: AgentConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        self._copies: dict[str, list[Game]] = {}

    def play(
        self,
        player: Player,
        game: str,
        recognizers: Sequence[Recognize],
        *,
        test: int,
        clip_in: Path | None = None,
    ) -> Episodes:
        """Play some episodes of a game.

        Args:
            player: what plays.
            game: the game.
            recognizers: one per episode, see `play_episodes`.
            test: number of the test.
            clip_in: folder for a clip of the first episode; no clip by default.
        """
        played = play_episodes(
            player,
            self._copies_of(game, len(recognizers)),
            recognizers,
            history=self._config.history,
            epsilon=self._config.test_epsilon,
            seed=derive_seed(self._seed, "test", test, game),
        )
        if clip_in is not None:
            write_clip(clip_in, game, played.first_frames)
        return played

    def _copies_of(self, game: str, count: int) -> list[Game]:
        """Return one copy per episode; they are kept, because loading a game takes long."""
        copies, config = self._copies.setdefault(game, []), self._config
        while len(copies) < count:
            copies.append(make_game(game, config.size, config.max_episode_steps, config.sticky))
        return copies[:count]


# Where the clips of a network are, in its directory, by when they were recorded.
CLIP_FOLDERS = UNTRAINED, LEARNED, LAST = "clips/untrained", "clips/learned", "clips"


def write_clip(folder: Path, game: str, frames: list[Frame]) -> None:
    """Store the first frames of an episode as grayscale images, in `<game>.npz`.

    Args:
        folder: where it is stored; made if need be.
        game: the name of the game.
        frames: of several channels, each pixel shows the last one that is lit.
    """
    stacked = np.stack(frames[:CLIP_FRAMES])
    brightness = np.linspace(255 / stacked.shape[1], 255, stacked.shape[1]) / 255
    images = (stacked * brightness[:, None, None]).max(1).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{file_name(game)}.npz", frames=images)


def untrained_row(scores: Mapping[str, list[float]]) -> MetricsRow:
    """Return the row of a test before any training.

    Args:
        scores: the score of each episode, by game.
    """
    return {
        "kind": "test",
        "step": 0,
        "segment": 0,
        "game": None,
        "steps_in": dict.fromkeys(scores, 0),
        "scores": dict(scores),
        "normalized": {
            game: normalized(game, float(np.mean(values))) for game, values in scores.items()
        },
        "agreement": {},
        "regret": {},
    }


class RandomPlayer:
    """Takes uniformly random actions, in whatever state and context.

    It is measured by the same code as an agent, in the same games with the same limit of steps. So
    it also is the reference where episodes are cut short, and published scores are none.
    """

    context = 0

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def act_in(self, context: int) -> None:
        """Do nothing: all contexts are the same."""

    def act(
        self, states: NDArray[np.uint8], epsilon: float, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return one random action per state."""
        return random.integers(0, self.num_actions, len(states))


def make_random(config: dict[str, Any]) -> "RandomMeasurement":
    """Make the measurement of one part of a run: its seed, its one game and its settings."""
    (game,) = config["games"]
    return RandomMeasurement(game, config["seed"], AgentConfig(**config["settings"]))


class RandomMeasurement:
    """Plays one game at random and yields a single row, like that of a test.

    Args:
        game: the game.
        seed: where all randomness comes from.
        config: how the game is played in tests.
    """

    def __init__(self, game: str, seed: int, config: AgentConfig) -> None:
        self.game, self.episodes = game, max(RANDOM_EPISODES, config.table_episodes)
        self._player = RandomPlayer(make_game(game, config.size).num_actions)
        self._evaluation = Evaluation(config, seed)
        self.scores: list[float] = []
        self.reported = False

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return len(self.scores) / self.episodes

    def run(self) -> Iterator[MetricsRow | None]:
        """Play all episodes; yield None in between, and the row of all scores at the end."""
        while len(self.scores) < self.episodes:
            self.scores += self._play(min(AT_ONCE, self.episodes - len(self.scores)))
            yield None
        if not self.reported:
            self.reported = True
            yield untrained_row({self.game: self.scores})

    def _play(self, count: int) -> list[float]:
        """Return the scores of the next episodes."""
        played = self._evaluation.play(
            self._player, self.game, [lambda frame: 0] * count, test=len(self.scores)
        )
        return played.scores

    def state_dict(self) -> dict[str, Any]:
        return {"scores": list(self.scores), "reported": self.reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores, self.reported = list(state["scores"]), state["reported"]


class Drift(NamedTuple):
    """The change of a network on one game, on states stored when the game was last left."""

    agreement: float  # fraction of the states in which the greedy action is still the same
    regret: float  # stored value lost by today's greedy action, on average


class Landmark(NamedTuple):
    """States of a game, and their action values when the game was last left."""

    states: Tensor  # [n, channels, height, width]
    values: Tensor  # [n, actions]
    context: int  # that the states were played in

    def drift(self, agent: AnyAgent) -> Drift:
        """Compare the present network with the stored action values."""
        chosen = _values_in(agent, self.states, self.context).argmax(1, keepdim=True)
        best, greedy = self.values.max(1, keepdim=True)
        agreement = (chosen == greedy).float().mean()
        regret = (best - self.values.gather(1, chosen)).mean()
        return Drift(float(agreement), float(regret))


class Landmarks:
    """The landmark of each game that was left."""

    def __init__(self) -> None:
        self._landmarks: dict[str, Landmark] = {}

    def store(self, game: str, agent: AnyAgent, replay: Replay, context: int) -> None:
        """Store states of a game that is being left, in place of older ones.

        Args:
            game: the game.
            agent: what evaluates the states.
            replay: where the states come from.
            context: the context that the replay memory belongs to. The states are evaluated in it,
                now and later, whatever context the agent is in.
        """
        states = torch.from_numpy(replay.spread_states(LANDMARK_STATES))
        self._landmarks[game] = Landmark(states, _values_in(agent, states, context), context)

    def drift(self, agent: AnyAgent) -> dict[str, Drift]:
        """Return the drift of the agent's network on each game that was left."""
        return {game: landmark.drift(agent) for game, landmark in self._landmarks.items()}

    def state_dict(self) -> dict[str, Any]:
        return {game: landmark._asdict() for game, landmark in self._landmarks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._landmarks = {game: Landmark(**landmark) for game, landmark in state.items()}


def _values_in(agent: AnyAgent, states: Tensor, context: int) -> Tensor:
    """Return the action values of states in a context; the agent stays in its own."""
    present = agent.context
    agent.act_in(context)
    values = agent.action_values(states)
    agent.act_in(present)
    return values


@dataclass
class TrainingStatistics:
    """What happened in training since the last row of measurements.

    Attributes:
        scores: scores of the episodes that ended.
        losses: one per update of the network.
        recognized: agent steps by context.
        epsilon: the last exploration rate.
        in_segment: agent steps by context since the segment began.
    """

    scores: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    recognized: dict[str, int] = field(default_factory=dict)
    epsilon: float = 1.0
    in_segment: dict[str, int] = field(default_factory=dict)

    def count(self, context: int, agent_steps: int, scores: list[float], epsilon: float) -> None:
        """Add the steps of one row.

        Args:
            context: the context that the steps were played in.
            agent_steps: their number.
            scores: scores of the episodes that ended with them.
            epsilon: the exploration rate.
        """
        self.scores.extend(scores)
        for counts in (self.recognized, self.in_segment):
            counts[str(context)] = counts.get(str(context), 0) + agent_steps
        self.epsilon = epsilon

    def take(self) -> dict[str, Any]:
        """Return the measurements for a row, and start counting from zero."""
        row = {
            "score": _mean(self.scores),
            "episodes": len(self.scores),
            "loss": _mean(self.losses),
            "epsilon": self.epsilon,
            "recognized": self.recognized,
        }
        self.scores, self.losses, self.recognized = [], [], {}
        return row

    def end_segment(self) -> list[int]:
        """Return the contexts of the segment, the one played most first, and start another."""
        contexts = sorted(self.in_segment, key=self.in_segment.__getitem__, reverse=True)
        self.in_segment = {}
        return [int(context) for context in contexts]

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(TrainingStatistics(**state).__dict__)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


class Measurements:
    """Measures an agent while it is trained, and makes the rows that its run reports.

    Rows of training and consolidation wait here until `waiting_rows` yields them. Those that still
    wait are part of the state.

    Args:
        clock: where the run is in its schedule.
        agent: the agent that is trained.
        contexts: how the context is known in a test.
        games: the games that it is tested on.
        config: how it is tested.
        seed: where all randomness of the tests comes from.
    """

    def __init__(
        self,
        clock: SegmentClock,
        agent: AnyAgent,
        contexts: ContextTracker,
        games: list[str],
        config: AgentConfig,
        seed: int,
    ) -> None:
        self._clock, self._agent, self._contexts = clock, agent, contexts
        self._games, self._config = games, config
        self._evaluation = Evaluation(config, seed)
        self._landmarks = Landmarks()
        self._waiting: list[MetricsRow] = []
        self.statistics = TrainingStatistics()
        self.tests = 0  # number of tests so far
        self.directory: Path | None = None  # for clips

    def waiting_rows(self) -> Iterator[MetricsRow]:
        """Yield the rows recorded since the last call, oldest first."""
        while self._waiting:
            yield self._waiting.pop(0)

    def record_training(self) -> None:
        """Record the training statistics since the last such row."""
        game = self._clock.game
        self._waiting.append(
            {
                "kind": "train",
                "step": self._clock.agent_steps,
                "segment": self._clock.segment,
                "game": game,
                "steps_in_game": self._clock.agent_steps_in(game),
                "context": self._agent.context,
                **self.statistics.take(),
            }
        )

    def record_consolidation(self, fisher: Fisher) -> None:
        """Record that the present context was consolidated with this Fisher."""
        diagonal = fisher.diagonals() if isinstance(fisher, KroneckerFisher) else fisher
        self._waiting.append(
            {
                "kind": "fisher",
                "step": self._clock.agent_steps,
                "context": self._agent.context,
                "trace": trace(diagonal),
                "largest": max(float(tensor.max()) for tensor in diagonal.values()),
                "wells": len(self._agent.tasks),
            }
        )

    def store_landmark(self, replays: Mapping[int, Replay]) -> None:
        """Store what the states of the current game are worth, because its segment has ended.

        The states come from the replay memory of the context that most of the segment was played
        in, and are valued in that context. The context of the last step may be another one.

        Args:
            replays: the replay memory of each context that has one.
        """
        played = [context for context in self.statistics.end_segment() if context in replays]
        if played:
            with self._agent.averaged():
                self._landmarks.store(self._clock.game, self._agent, replays[played[0]], played[0])

    def test(self) -> MetricsRow:
        """Play all games without learning, measure the drift, and return the row.

        A clip of a game is stored before any training, after its first visit, and at the end.
        """
        clock = self._clock
        with self._agent.averaged():
            played = {game: self._play(game) for game in self._games}
            drift = self._landmarks.drift(self._agent)
        self.tests += 1
        return {
            **untrained_row({game: episodes.scores for game, episodes in played.items()}),
            "step": clock.agent_steps,
            "segment": clock.segment,
            "game": clock.previous_game,
            "steps_in": {game: clock.agent_steps_in(game) for game in self._games},
            "agreement": {game: change.agreement for game, change in drift.items()},
            "regret": {game: change.regret for game, change in drift.items()},
            "recognized": {game: episodes.recognized for game, episodes in played.items()},
            "contexts": self._contexts.num_contexts,
        }

    def _play(self, game: str) -> Episodes:
        """Play the episodes of one game in a test."""
        present = self._agent.context
        return self._evaluation.play(
            self._agent,
            game,
            [
                self._contexts.recognize_in_test(game, present)
                for _ in range(self._episodes_of(game))
            ],
            test=self._clock.segment,
            clip_in=self._clip_folder(game),
        )

    def _clip_folder(self, game: str) -> Path | None:
        """Return where this test stores a clip of the game; None if it does not."""
        clock = self._clock
        if self.directory is None:
            return None
        if clock.over:
            return self.directory / LAST
        if clock.segment == 0:
            return self.directory / UNTRAINED
        just_learned = clock.schedule[: clock.segment].count(game) == 1
        return self.directory / LEARNED if just_learned and game == clock.previous_game else None

    def _episodes_of(self, game: str) -> int:
        """Return the number of episodes in a test: more where a table needs the score."""
        clock, config = self._clock, self._config
        left = game == clock.previous_game
        returns = not clock.over and game == clock.game and clock.agent_steps_in(game) > 0
        in_table = left or returns or clock.over
        return max(config.test_episodes, config.table_episodes if in_table else 0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "waiting": list(self._waiting),
            "tests": self.tests,
            "statistics": self.statistics.state_dict(),
            "landmarks": self._landmarks.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._waiting = list(state["waiting"])
        self.tests = state["tests"]
        self.statistics.load_state_dict(state["statistics"])
        self._landmarks.load_state_dict(state["landmarks"])
