"""The Fisher of a Q-network against a loop over single states, in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from support.acting import ACTIONS, make_agent, make_transitions
from torch import Tensor

from ewc_paper.games.agent import Agent


def double_agent(**settings: Any) -> Agent:
    agent = make_agent(**settings)
    agent.network.double()
    agent.target.double()
    return agent


def shared(agent: Agent) -> dict[str, Tensor]:
    return {n: p for n, p in agent.network.named_parameters() if n.startswith("layers.")}


def squared_gradient(agent: Agent, value: Tensor) -> dict[str, Tensor]:
    weights = shared(agent)
    gradients = torch.autograd.grad(value, list(weights.values()))
    return {name: g.square() for name, g in zip(weights, gradients, strict=True)}


def mean_of(fishers: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: sum(f[name] for f in fishers) / len(fishers) for name in fishers[0]}


def assert_close(fisher: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert fisher.keys() == expected.keys()
    for name in fisher:
        torch.testing.assert_close(fisher[name].double(), expected[name], rtol=1e-9, atol=0)


def test_gaussian_is_the_sum_over_all_actions_of_the_squared_gradient() -> None:
    """One backward pass with random signs is unbiased: many of them come near it."""
    agent, batch = double_agent(), make_transitions(count=4)
    states = torch.from_numpy(batch.states)
    expected = mean_of(
        [
            {
                name: sum(
                    squared_gradient(agent, agent.network(state[None])[0, a])[name]
                    for a in range(ACTIONS)
                )
                for name in shared(agent)
            }
            for state in states
        ]
    )
    random = np.random.default_rng(0)
    draws = 400
    fisher = agent.fisher([batch] * draws, random)
    for name in fisher:
        assert float(fisher[name].sum()) == pytest.approx(float(expected[name].sum()), rel=0.05)
    # The last layer's gradient involves one action only, so there signs change nothing.
    last = list(fisher)[-1]
    torch.testing.assert_close(fisher[last].double(), expected[last], rtol=1e-9, atol=0)


def test_contexts_have_no_part_in_it() -> None:
    agent = double_agent()
    fisher = agent.fisher([make_transitions()], np.random.default_rng(0))
    assert fisher.keys() == shared(agent).keys()
