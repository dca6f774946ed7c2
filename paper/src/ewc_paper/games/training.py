"""Learning games one after another: schedule, recognition, replay, agent and memory together.

`ContinualLearner.run` yields every few steps. At each yield, `state_dict()` contains everything
that the rest of the run depends on, and a run that is resumed from it ends bit for bit the same.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ewc_paper.errors import RunError
from ewc_paper.games.agent import exploration_rate
from ewc_paper.games.config import ARMS, AgentConfig
from ewc_paper.games.contexts import ContextTracker, Merge, make_recognizer
from ewc_paper.games.evaluation import Measurements, MetricsRow
from ewc_paper.games.gated_agent import make_agent
from ewc_paper.games.replay import Experience, ReplayRow, Transitions
from ewc_paper.games.schedule import SegmentClock
from ewc_paper.games.worlds.game import RunningGame, make_game
from ewc_paper.seeding import derive_seed

CHUNK = 32  # rows played between two yields


def make_continual(config: dict[str, Any]) -> "ContinualLearner":
    """Make the learner of one part of a run: arm, seed, games, schedule and settings."""
    return ContinualLearner(
        arm=config["arm"],
        seed=config["seed"],
        games=config["games"],
        schedule=config["schedule"],
        config=AgentConfig(**config["settings"]),
    )


class ContinualLearner:
    """One agent that plays the games of a schedule, one game per segment.

    Args:
        arm: whether it is protected by EWC, and whether it recognizes the game from its frames or
            is told its name; a key of `ARMS`.
        seed: where all randomness comes from.
        games: the games that it is tested on.
        schedule: the game of each segment.
        config: the agent, its training and its tests.
    """

    def __init__(
        self, *, arm: str, seed: int, games: list[str], schedule: list[str], config: AgentConfig
    ) -> None:
        self.seed, self.config = seed, config
        self.protected = ARMS[arm].protected
        game = make_game(schedule[0], config.size)
        channels, height, width = game.frame_shape
        state_shape = (config.history * channels, height, width)
        self.clock = SegmentClock(schedule, config.segment_steps, config.environments)
        self.agent = make_agent(
            config,
            state_shape,
            game.num_actions,
            derive_seed(seed, "weights"),
            ARMS[arm],
        )
        recognizer = make_recognizer(asdict(config)) if ARMS[arm].recognizes else None
        self.contexts = ContextTracker(recognizer, labelled=ARMS[arm].labelled)
        self.experience = Experience(config, game.frame_shape)
        self.measurements = Measurements(self.clock, self.agent, self.contexts, games, config, seed)
        self.random = np.random.default_rng(derive_seed(seed, "actions"))
        self.game = self._start_game()

    def keep_in(self, directory: Path) -> None:
        """Keep replay memories and clips in this directory."""
        self.experience.directory = self.measurements.directory = directory

    @property
    def needs_saving(self) -> bool:
        """True when unsaved rows would soon overwrite rows that a resume needs."""
        return self.experience.needs_saving

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return self.clock.progress

    def run(self) -> Iterator[MetricsRow | None]:
        """Play all segments, with a test before the first and after each.

        Yields rows of measurements, and None in between.
        """
        yield from self.measurements.waiting_rows()  # of a run that is resumed
        if self.measurements.tests == 0:
            yield self.measurements.test()
        while not self.clock.over:
            while self.clock.rows_left:
                self.play(CHUNK)
                yield None
                yield from self.measurements.waiting_rows()
            self._end_segment()
            yield self.measurements.test()

    def play(self, max_rows: int) -> None:
        """Play and learn for at most so many rows of the current segment."""
        for _ in range(min(max_rows, self.clock.rows_left)):
            self._play_row()
            if self.clock.times_due(self.config.report_every) or not self.clock.rows_left:
                self.measurements.record_training()

    def _play_row(self) -> None:
        """Take one step in all copies of the game, and learn what is due."""
        context = self.contexts.identify(self.clock.game, self.game.frame_in_turn(self.clock.row))
        for merge in self.contexts.merges:
            self._merge(merge)
        if context is not None and context != self.agent.context:
            self._switch(context)
        self._act()
        if context is not None:
            self.experience.store(context)
        self._learn()

    def _merge(self, merge: Merge) -> None:
        """Go on with one of two contexts, without the gains, the well and the rows of the other."""
        if self.agent.context == merge.dropped:
            self.agent.enter(merge.kept)
            self.experience.mark_gap()
        self.agent.forget(merge.dropped)
        self.experience.forget(merge.dropped)

    def _switch(self, context: int) -> None:
        """Leave a task for another: consolidate the old one, and stop the pull of the new one.

        The agent adopts the average of its parameters here and not at the end of a segment: until
        the recognizer has noticed the new game the agent keeps learning, and a few updates would
        undo the averaging.
        """
        self.agent.adopt_average()
        self._consolidate()
        self.agent.enter(context)
        self.experience.mark_gap()

    def _consolidate(self) -> None:
        """Consolidate the present context, if it is protected and was played long enough."""
        context, config = self.agent.context, self.config
        due = (
            self.protected
            and self.contexts.agent_steps(context) >= config.ewc_start
            and self.contexts.steps_since_consolidation(context) >= config.min_visit
        )
        if not due or len(self.experience.replays[context]) == 0:
            return  # without a transition there is nothing to compute a Fisher from
        random = self._random_at_this_step("fisher")
        fisher = self.agent.consolidate(self.batches(context, random), random)
        self.contexts.mark_consolidated(context)
        self.measurements.record_consolidation(fisher)

    def batches(self, context: int, random: np.random.Generator) -> Iterator[Transitions]:
        """Yield the minibatches of a context that its Fisher is computed from."""
        replay = self.experience.replays[context]
        for _ in range(self.config.fisher_batches):
            yield replay.sample(self.config.batch_size, random)

    def _random_at_this_step(self, use: str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, use, self.clock.agent_steps))

    def _act(self) -> None:
        """Take one step in all copies, and count it."""
        game, context, copies = self.game, self.agent.context, self.clock.copies
        epsilon = self._epsilon()
        actions = self.agent.act(game.states, epsilon, self.random)
        frames, is_first = game.frames.copy(), game.is_first.copy()
        step = game.step(actions)
        rewards = step.rewards.clip(-1, 1)
        self.experience.hold(
            ReplayRow(frames, actions, rewards, step.terminal, step.truncated, is_first)
        )
        self.clock.tick()
        self.contexts.count(context, copies)
        self.measurements.statistics.count(context, copies, step.scores, epsilon)

    def _epsilon(self) -> float:
        """Return the exploration rate of the present context."""
        config = self.config
        return exploration_rate(
            self.contexts.agent_steps(self.agent.context),
            start=config.epsilon_start,
            end=config.epsilon_end,
            final=config.epsilon,
        )

    def _learn(self) -> None:
        """Synchronize the target network and train on minibatches, as often as is due."""
        config = self.config
        if self.clock.times_due(config.target_every):
            self.agent.update_target()
        replay = self.experience.replays.get(self.agent.context)
        if replay is None or len(replay) < config.min_history:
            return
        for _ in range(self.clock.times_due(config.update_every)):
            loss = self.agent.learn(replay.sample(config.batch_size, self.random))
            if not math.isfinite(loss):
                raise RunError(
                    f"the agent diverged: its loss is {loss} after {self.clock.agent_steps} steps; "
                    "choose a smaller --lr or --strength"
                )
            self.measurements.statistics.losses.append(loss)

    def _end_segment(self) -> None:
        self.measurements.store_landmark(self.experience.replays)
        self.experience.drop_pending()
        self.clock.next_segment()
        if self.clock.over:
            self.agent.adopt_average()
        else:
            self.game = self._start_game()

    def _start_game(self) -> RunningGame:
        """Start the game of the current segment."""
        return RunningGame(
            self.clock.game,
            self.clock.copies,
            seed=derive_seed(self.seed, "segment", self.clock.segment),
            size=self.config.size,
            max_episode_steps=self.config.max_episode_steps,
            history=self.config.history,
            sticky=self.config.sticky,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on, as tensors and plain values."""
        return {
            "clock": self.clock.state_dict(),
            "contexts": self.contexts.state_dict(),
            "agent": self.agent.state_dict(),
            "experience": self.experience.state_dict(),
            "measurements": self.measurements.state_dict(),
            "random": self.random.bit_generator.state,
            "game": {} if self.clock.over else self.game.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of a learner with the same config."""
        self.clock.load_state_dict(state["clock"])
        self.contexts.load_state_dict(state["contexts"])
        self.agent.load_state_dict(state["agent"])
        self.experience.load_state_dict(state["experience"])
        self.measurements.load_state_dict(state["measurements"])
        self.random.bit_generator.state = state["random"]
        if not self.clock.over:
            self.game = self._start_game()
            self.game.load_state_dict(state["game"])
