"""Learning games one after another: schedule, recognition, replay, agent and memory together.

`ContinualLearner.run` yields after every few steps, and whenever it has yielded `state_dict()`
holds all that is needed to go on from there, bit for bit: networks, optimizer, memory, replay, ε
timers, recogniser, random numbers and, as the actions since their start, the running games.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ewc.fisher.scaling import shaped, trace
from ewc.recognition import ForgetMeNot, RecognizerConfig
from ewc_paper.games.agent import Agent
from ewc_paper.games.arms import ARMS
from ewc_paper.games.config import Settings
from ewc_paper.games.consolidation import importance, silence_dead_units
from ewc_paper.games.evaluation import Examiner, FrameStacks, Recognize
from ewc_paper.games.experience import Experience
from ewc_paper.games.replay import Batch, Row
from ewc_paper.games.tally import Tally
from ewc_paper.games.worlds.environments import Environments
from ewc_paper.games.worlds.game import make_game
from ewc_paper.seeding import derive_seed

CHUNK = 32  # rows played between two yields


def make_continual(config: dict[str, Any]) -> "ContinualLearner":
    """The learner that an experiment describes: arm, seed, games tested, schedule, settings."""
    return ContinualLearner(
        arm=config["arm"],
        seed=config["seed"],
        games=config["games"],
        schedule=config["schedule"],
        settings=Settings(**config["settings"]),
    )


class ContinualLearner:
    """One agent that plays the games of a schedule, a segment each.

    `arm` says what it has: `plain` and `single` have true labels and no EWC, `ewc-labels` both, and
    `ewc-fmn` has EWC and works out the task by itself.
    """

    def __init__(
        self, *, arm: str, seed: int, games: list[str], schedule: list[str], settings: Settings
    ) -> None:
        torch.set_flush_denormal(True)  # arithmetic on denormals is some twenty times slower
        self.seed, self.games, self.schedule, self.settings = seed, games, schedule, settings
        self.protected = ARMS[arm].protected
        game = make_game(schedule[0], settings.size)
        self.frame_shape, num_actions = game.frame_shape, game.num_actions
        channels, *sides = self.frame_shape
        state_shape = (settings.history * channels, sides[0], sides[1])
        self.agent = Agent(settings, state_shape, num_actions, derive_seed(seed, "weights"))
        self.recognizer = _make_recognizer(settings) if ARMS[arm].recognizes else None
        self.experience = Experience(settings, self.frame_shape)
        self.examiner = Examiner(games, settings)
        self.random = np.random.default_rng(derive_seed(seed, "actions"))
        self.segment = self.row = self.step = self.updates_owed = 0
        self.tested = False
        self.context_of: dict[str, int] = {}  # the true labels, numbered as they come
        self.steps_in_game = dict.fromkeys(games, 0)
        self.timers: dict[int, int] = {}  # steps in each context
        self.unheld: dict[int, int] = {}  # steps since the context's well was dug
        self.outbox: list[dict[str, Any]] = []
        self.tally = Tally()
        self._begin_segment()

    def keep_in(self, directory: Path) -> None:
        """Keep replay memories and clips in this directory."""
        self.experience.directory = self.examiner.directory = directory

    @property
    def needs_saving(self) -> bool:
        return self.experience.needs_saving

    @property
    def progress(self) -> float:
        return (self.segment + self.row / self._rows_a_segment) / len(self.schedule)

    @property
    def _over(self) -> bool:
        """All segments are played; the last test may be still to come."""
        return self.segment == len(self.schedule)

    @property
    def _rows_a_segment(self) -> int:
        return -(-self.settings.segment_steps // self.settings.environments)

    @property
    def _game(self) -> str:
        return self.schedule[min(self.segment, len(self.schedule) - 1)]

    def run(self) -> Iterator[dict[str, Any] | None]:
        """Play to the end; yields rows of measurements, and None in between."""
        while True:
            if self.outbox:
                yield self.outbox.pop(0)
            elif not self.tested:
                self.outbox.append(self._test())
                self.tested = True
            elif not self._over:
                self._play_chunk()
                yield None
            else:
                return

    def _begin_segment(self) -> None:
        settings = self.settings
        self.row = 0
        self.experience.break_off()
        self.environments = Environments(
            self._game,
            settings.environments,
            seed=derive_seed(self.seed, "segment", self.segment),
            size=settings.size,
            max_steps=settings.max_episode_steps,
        )
        self.stacks = FrameStacks(settings.environments, self.frame_shape, settings.history)

    def _play_chunk(self) -> None:
        for _ in range(min(CHUNK, self._rows_a_segment - self.row)):
            self._play_row()
            self.row += 1
            if self.step % self.settings.report_every < self.settings.environments:
                self.outbox.append(self._training_row())
        if self.row == self._rows_a_segment:
            self._end_segment()

    def _training_row(self) -> dict[str, Any]:
        return {
            "kind": "train",
            "step": self.step,
            "segment": self.segment,
            "game": self._game,
            "steps_in_game": self.steps_in_game[self._game],
            "context": self.agent.context,
            **self.tally.take(),
        }

    def _end_segment(self) -> None:
        replay = self.experience.replays[self.agent.context]
        with self.agent.settled():
            self.examiner.set_landmark(self._game, self.agent, replay)
        self.segment, self.row = self.segment + 1, 0
        self.tested = False
        self.experience.pending.clear()
        if self._over:
            self.agent.settle()
        else:
            self._begin_segment()

    def _play_row(self) -> None:
        """One step of all copies of the game, and the learning that is due."""
        environments = self.environments
        self.stacks.push(environments.frames, environments.fresh)
        context, decided = self._recognize()
        if decided and context != self.agent.context:
            self._switch(context)
        epsilon = self._epsilon()
        actions = self.agent.act(self.stacks.states, epsilon, self.random)
        frames, fresh = environments.frames.copy(), environments.fresh.copy()
        outcome = environments.step(actions)
        rewards = outcome.rewards.clip(-1, 1)
        row = Row(frames, actions, rewards, outcome.terminal, outcome.cut, fresh)
        self.experience.hold(row)
        if decided:
            self.experience.store(self.agent.context)
        self._count(outcome.scores, epsilon)
        self._learn()

    def _recognize(self) -> tuple[int, bool]:
        """The task of now, and whether that is decided: held-back rows may then be stored."""
        if self.recognizer is None:
            return self.context_of.setdefault(self._game, len(self.context_of)), True
        # One of the copies in turn: with four of them that is every fourth step, as in the paper.
        frame = self.environments.frames[self.row % self.settings.environments]
        task = self.recognizer.observe(frame)
        return task, self.recognizer.decided

    def _switch(self, context: int) -> None:
        """Leave a task for another: dig the well of the one, leave out that of the other.

        The agent settles only now. At the end of a segment would be too soon: until the recogniser
        has noticed, it goes on learning, and a few updates undo what settling has done.
        """
        self.agent.settle()
        self._dig_well()
        self.agent.enter(context)
        self.experience.break_off()

    def _dig_well(self) -> None:
        """The well of the present context, if it was played long enough."""
        left, settings = self.agent.context, self.settings
        long_enough = self.timers.get(left, 0) >= settings.ewc_start
        if not (self.protected and long_enough and self.unheld[left] >= settings.min_visit):
            return
        if len(self.experience.replays[left]) == 0:
            return  # left before n steps were played: there is no transition to take a Fisher over
        dead = 0
        if settings.silence:
            random = np.random.default_rng(derive_seed(self.seed, "dead units", self.step))
            dead = silence_dead_units(self.agent, self._batches(left, random))
        random = np.random.default_rng(derive_seed(self.seed, "fisher", self.step))
        fisher = importance(self.agent, self._batches(left, random), random)
        self.agent.memory.anchor(
            shaped(fisher, floor=settings.floor, normalize=settings.normalize), task=str(left)
        )
        self.unheld[left] = 0
        self.outbox.append(
            {
                "kind": "fisher",
                "step": self.step,
                "context": left,
                "trace": trace(fisher),
                "largest": max(float(tensor.max()) for tensor in fisher.values()),
                "wells": len(self.agent.memory.tasks),
                "silenced": dead,
            }
        )

    def _batches(self, context: int, random: np.random.Generator) -> Iterator[Batch]:
        """The minibatches of a task that its well is dug from."""
        replay = self.experience.replays[context]
        for _ in range(self.settings.fisher_batches):
            yield replay.sample(self.settings.batch_size, random)

    def _epsilon(self) -> float:
        """ε falls from 1 to its end on the present context's own timer."""
        settings = self.settings
        steps = self.timers.get(self.agent.context, 0)
        span = max(1, settings.epsilon_end - settings.epsilon_start)
        gone = min(1.0, max(0.0, (steps - settings.epsilon_start) / span))
        return 1.0 + (settings.epsilon - 1.0) * gone

    def _count(self, scores: list[float], epsilon: float) -> None:
        copies, context = self.settings.environments, self.agent.context
        self.timers[context] = self.timers.get(context, 0) + copies
        self.unheld[context] = self.unheld.get(context, 0) + copies
        self.steps_in_game[self._game] += copies
        before, self.step = self.step, self.step + copies
        self.updates_owed += copies
        if before // self.settings.target_every != self.step // self.settings.target_every:
            self.agent.update_target()
        self.tally.count(context, copies, scores, epsilon)

    def _learn(self) -> None:
        replay = self.experience.replays.get(self.agent.context)
        while self.updates_owed >= self.settings.update_every:
            self.updates_owed -= self.settings.update_every
            if replay is not None and len(replay) >= self.settings.min_history:
                batch = replay.sample(self.settings.batch_size, self.random)
                loss = self.agent.learn(batch)
                if not math.isfinite(loss):
                    raise FloatingPointError(
                        f"the agent diverged: its loss is {loss} after {self.step} steps; "
                        "choose a smaller --lr or --strength"
                    )
                self.tally.losses.append(loss)

    def _test(self) -> dict[str, Any]:
        """Play every game without learning, and see how far the network has drifted."""
        with self.agent.settled():
            results = self.examiner.test(
                self.agent,
                self._recognize_in,
                seed=self.seed,
                segment=self.segment,
                clips=self._over,
            )
        return {
            "kind": "test",
            "step": self.step,
            "segment": self.segment,
            "game": self.schedule[self.segment - 1] if self.segment else None,
            "steps_in": dict(self.steps_in_game),
            **results,
        }

    def _recognize_in(self, game: str) -> Recognize:
        """How the context is found in a test: it is known, or told from the frames."""
        if self.recognizer is None or not self.timers:
            context = self.context_of.get(game, self.agent.context)
            return lambda frame: context
        return self.recognizer.frozen().observe

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on, as tensors and plain values."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "timers": _with_text_keys(self.timers),
            "unheld": _with_text_keys(self.unheld),
            "tally": asdict(self.tally),
            "random": self.random.bit_generator.state,
            "agent": self.agent.state_dict(),
            "recognizer": self.recognizer.state_dict() if self.recognizer else {},
            "experience": self.experience.state_dict(),
            "examiner": self.examiner.state_dict(),
            "stacks": torch.from_numpy(self.stacks.states),
            "environments": {} if self._over else self.environments.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was called, in a learner of the same config."""
        self.segment = state["segment"]
        if not self._over:
            self._begin_segment()
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.timers = _with_number_keys(state["timers"])
        self.unheld = _with_number_keys(state["unheld"])
        self.tally = Tally(**state["tally"])
        self.random.bit_generator.state = state["random"]
        self.agent.load_state_dict(state["agent"])
        if self.recognizer is not None:
            self.recognizer.load_state_dict(state["recognizer"])
        self.experience.load_state_dict(state["experience"])
        self.examiner.load_state_dict(state["examiner"])
        self.stacks.states[:] = state["stacks"].numpy()
        if not self._over:
            self.environments.load_state_dict(state["environments"])


# Attributes of the learner that are plain values and change as it runs.
_PLAIN = (
    *("segment", "row", "step", "updates_owed", "tested"),
    *("context_of", "steps_in_game", "outbox"),
)


def _make_recognizer(settings: Settings) -> ForgetMeNot:
    return ForgetMeNot(
        **{one.name: getattr(settings, one.name) for one in fields(RecognizerConfig)}
    )


def _with_text_keys(counts: dict[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in counts.items()}


def _with_number_keys(counts: dict[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in counts.items()}
