"""A small agent, random transitions for it, and a game that it can play."""

from typing import Any

import numpy as np

from ewc_paper.games.agent import Agent
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.gated_agent import GatedAgent
from ewc_paper.games.replay import Transitions
from ewc_paper.games.worlds.game import Frame, GameStep

STATE_SHAPE, ACTIONS = (10, 10, 10), 6


SMALL: dict[str, Any] = {"network": "minatar", "history": 1, "batch_size": 8}


def make_agent(**options: Any) -> Agent:
    return Agent(AgentConfig(**{**SMALL, **options}), STATE_SHAPE, ACTIONS, seed=0)


def make_gated_agent(**options: Any) -> GatedAgent:
    given = {**SMALL, "gates": 0.5, "filter_gates": 0.5, "optimizer": "adam", **options}
    return GatedAgent(AgentConfig(**given), STATE_SHAPE, ACTIONS, seed=0)


def make_transitions(seed: int = 0, count: int = 8) -> Transitions:
    random = np.random.default_rng(seed)
    states = random.integers(0, 256, (2, count, *STATE_SHAPE), dtype=np.uint8)
    return Transitions(
        states[0],
        random.integers(0, ACTIONS, count),
        random.standard_normal(count).astype(np.float32),
        states[1],
        np.where(random.random(count) < 0.3, 0, 0.99).astype(np.float32),
    )


class CountingGame:
    """A game of `length` steps with a reward of 1 each, and 2 for the last; frames count them."""

    frame_shape, num_actions = STATE_SHAPE, ACTIONS

    def __init__(self, length: int, *, truncated: bool = False) -> None:
        self.length, self.truncated, self.steps = length, truncated, 0
        self.seeds: list[int] = []

    def reset(self, seed: int) -> Frame:
        self.seeds.append(seed)
        self.steps = 0
        return np.zeros(STATE_SHAPE, np.uint8)

    def step(self, action: int) -> GameStep:
        assert self.steps < self.length, "played on after its end"
        self.steps += 1
        over = self.steps == self.length
        frame = np.full(STATE_SHAPE, self.steps, np.uint8)
        return GameStep(frame, 1.0 + over, over and not self.truncated, over and self.truncated)
