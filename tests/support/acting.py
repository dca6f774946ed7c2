"""A small agent and random transitions for it."""

from typing import Any

import numpy as np

from ewc_paper.games.agent import Agent
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.replay import Batch

STATE_SHAPE, ACTIONS = (10, 10, 10), 6


def make_agent(**settings: Any) -> Agent:
    given: dict[str, Any] = {"network": "minatar", "history": 1, "batch_size": 8, **settings}
    agent = Agent(AgentConfig(**given), STATE_SHAPE, ACTIONS, seed=0)
    return agent


def make_batch(seed: int = 0, count: int = 8) -> Batch:
    random = np.random.default_rng(seed)
    states = random.integers(0, 256, (2, count, *STATE_SHAPE), dtype=np.uint8)
    return Batch(
        states[0],
        random.integers(0, ACTIONS, count),
        random.standard_normal(count).astype(np.float32),
        states[1],
        np.where(random.random(count) < 0.3, 0, 0.99).astype(np.float32),
    )
