"""The three Fishers of a Q-network against loops over single states, in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from support.acting import ACTIONS, make_agent, make_transitions
from torch import Tensor

from ewc_paper.games.agent import Agent
from ewc_paper.games.consolidation import raised, silence_dead_units, used_weights


def agent_of(kind: str, **settings: Any) -> Agent:
    agent = make_agent(fisher=kind, **settings)
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


def test_td_is_the_mean_squared_gradient_of_each_transition() -> None:
    agent, batch = agent_of("td"), make_transitions()
    one_by_one = []
    for i in range(len(batch.states)):
        single = type(batch)(*(array[i : i + 1] for array in batch))
        loss = agent.learning.td_loss(single, agent.learning.td_targets(single))
        one_by_one.append(squared_gradient(agent, loss))
    assert_close(agent.fisher([batch], np.random.default_rng(0)), mean_of(one_by_one))


def test_td_minibatch_squares_the_gradient_of_a_minibatch() -> None:
    agent, batches = agent_of("td-minibatch"), [make_transitions(0), make_transitions(1)]
    expected = [
        squared_gradient(agent, agent.learning.td_loss(b, agent.learning.td_targets(b)))
        for b in batches
    ]
    assert_close(agent.fisher(batches, np.random.default_rng(0)), mean_of(expected))


def test_gaussian_is_the_sum_over_all_actions_of_the_squared_gradient() -> None:
    """One backward pass with random signs is unbiased: many of them come near it."""
    agent, batch = agent_of("gaussian"), make_transitions(count=4)
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


@pytest.mark.parametrize("kind", ["gaussian", "td", "td-minibatch"])
def test_contexts_have_no_part_in_it(kind: str) -> None:
    agent = agent_of(kind)
    fisher = agent.fisher([make_transitions()], np.random.default_rng(0))
    assert fisher.keys() == shared(agent).keys()


def test_a_leak_shows_the_fisher_what_units_would_say_that_are_off() -> None:
    batch, fishers = make_transitions(), {}
    for leak in (0.0, 0.3):
        agent = agent_of("td", leak=leak)
        agent.network.contexts[0].biases[-2].data[:] = -1e3  # all hidden units are off
        fishers[leak] = agent.fisher([batch], np.random.default_rng(0))

    network, states = agent.network, torch.from_numpy(batch.states)
    convolved, _, values = network.layer_outputs(states)
    inputs = convolved.movedim(1, -1).flatten(1)
    actions = torch.from_numpy(batch.actions)
    errors = values.gather(1, actions[:, None])[:, 0] - agent.learning.td_targets(batch)
    outgoing = network.layers[-1].weight[actions]
    gradients = (errors.clamp(-1, 1)[:, None] * 0.3 * outgoing)[:, :, None] * inputs[:, None, :]
    incoming = "layers.1.weight"
    assert not fishers[0.0][incoming].any()
    torch.testing.assert_close(fishers[0.3][incoming], gradients.square().mean(0))
    assert not fishers[0.3]["layers.2.weight"].any()  # what they pass on is zero as before


def test_a_silenced_unit_can_come_to_life_without_a_word_in_the_old_task() -> None:
    """Its weights, which have no Fisher, change as they like: only a gain of zero stops it."""
    agent, batch = agent_of("gaussian"), make_transitions()
    network, states = agent.network, torch.from_numpy(batch.states)
    gains, biases = network.contexts[0].gains[-2], network.contexts[0].biases[-2]
    biases.data[: len(biases) // 2] = -1e3  # half of the units are dead
    before = network(states)
    fisher = agent.fisher([batch], np.random.default_rng(0))

    silenced = silence_dead_units(network, [batch])

    dead = gains == 0
    assert len(biases) // 2 <= int(dead.sum()) <= silenced < sum(network.widths)
    torch.testing.assert_close(network(states), before, rtol=0, atol=0)
    assert_close(agent.fisher([batch], np.random.default_rng(0)), fisher)
    incoming, outgoing = network.layers[-2].weight, network.layers[-1].weight
    assert not fisher["layers.1.weight"][dead].any()
    incoming.data[dead] += 1.0
    outgoing.data[:, dead] += 1.0
    biases.data[dead] = 1.0
    torch.testing.assert_close(network(states), before, rtol=0, atol=0)

    gains.data[dead] = 1.0
    assert not torch.allclose(network(states), before)


def test_weights_that_a_context_does_not_use_are_those_that_change_nothing() -> None:
    agent = agent_of("gaussian", gated=True, gates=0.5, filter_gates=0.5)
    states = torch.from_numpy(make_transitions().states)
    used = used_weights(agent.network)
    before = agent.action_values(states)
    with torch.no_grad():
        for name, weight in shared(agent).items():
            weight[~used[name]] = 1e3
    assert torch.equal(agent.action_values(states), before)
    gradients = squared_gradient(agent, agent.network(states).abs().sum())
    for name, gradient in gradients.items():
        assert (gradient[~used[name]] == 0).all()
        assert 0.2 < used[name].double().mean() < 0.6
        assert (gradient[used[name]] != 0).double().mean() > 0.3  # a ReLU may close the others


def test_the_floor_is_added_to_the_weights_in_use() -> None:
    fisher = {"w": torch.tensor([[1.0, 3.0], [0.0, 0.0]])}
    used = {"w": torch.tensor([[True, True], [False, False]])}
    assert raised(fisher, used, 0.5)["w"].tolist() == [[2.0, 4.0], [0.0, 0.0]]
