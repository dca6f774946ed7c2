"""What the steps of an agent change, and how it remembers what it has learned."""

import copy

import numpy as np
import pytest
import torch
from support.acting import make_agent, make_transitions
from torch.nn.utils import parameters_to_vector

from ewc.warnings import EWCWarning


def test_learning_changes_the_shared_weights_and_the_present_context_alone() -> None:
    agent = make_agent()
    agent.enter(1)
    before = {name: w.detach().clone() for name, w in agent.network.named_parameters()}
    agent.learn(make_transitions())
    changed = {
        name for name, w in agent.network.named_parameters() if not torch.equal(w, before[name])
    }
    assert changed == {name for name in before if not name.startswith("contexts.0")}


def test_the_loss_falls_on_a_fixed_batch() -> None:
    agent, batch = make_agent(optimizer="adam", lr=1e-3), make_transitions()
    y = agent.learning.td_targets(batch)
    first = agent.learning.td_loss(batch, y).item()
    for _ in range(100):
        agent.learn(batch)
    assert agent.learning.td_loss(batch, y).item() < first / 5


def test_rmsprop_never_moves_a_weight_by_more_than_the_maximum_rate_allows() -> None:
    """A gradient of the minibatch's sum moves a weight by at most max_lr times it."""
    agent, batch = make_agent(max_gradient_norm=1e9), make_transitions()
    before = agent.network.layers[-1].weight.detach().clone()
    agent.learn(batch)
    weight = agent.network.layers[-1].weight
    limit = agent.config.max_lr * agent.config.batch_size * weight.grad.abs()
    moved = (weight.detach() - before).abs()
    assert (moved <= limit + 1e-7).all()  # to the rounding of a weight
    assert (moved > 0).any()


def test_gradients_are_clipped_to_the_norm() -> None:
    agent, batch = make_agent(max_gradient_norm=0.08), make_transitions()
    agent.learn(batch)
    squares = sum(w.grad.square().sum() for w in agent.network.parameters() if w.grad is not None)
    assert float(squares) ** 0.5 == pytest.approx(0.08 / 8, rel=1e-3)


def test_exploration_takes_random_actions_as_often_as_epsilon_says() -> None:
    agent, states = make_agent(), np.repeat(make_transitions().states[:1], 4000, axis=0)
    greedy = agent.act(states[:1], 0.0, np.random.default_rng(0))[0]
    actions = agent.act(states, 0.3, np.random.default_rng(0))
    assert np.mean(actions != greedy) == pytest.approx(0.3 * 5 / 6, abs=0.03)


def test_a_context_that_flickers_leaves_the_target_network_alone() -> None:
    agent = make_agent(optimizer="adam", lr=1e-2)
    agent.enter(1)
    before = parameters_to_vector(agent.target.layers.parameters())
    agent.learn(make_transitions())
    agent.enter(0)
    agent.enter(1)
    assert torch.equal(parameters_to_vector(agent.target.layers.parameters()), before)


def test_a_task_trained_again_is_not_pulled_by_its_own_old_well() -> None:
    agent = make_agent(strength=1e9, fresh_optimizer=True)
    agent.memory.anchor(1.0, task="0")
    before = agent.network.layers[0].weight.detach().clone()
    agent.enter(0)
    agent.learn(make_transitions())
    moved = (agent.network.layers[0].weight - before).abs().max()
    agent.enter(1)  # now the well of 0 holds
    held = agent.network.layers[0].weight.detach().clone()
    for seed in range(5):
        agent.learn(make_transitions(seed))
    assert moved > 1e-5
    back = (agent.network.layers[0].weight - before).abs().max()
    assert back < (held - before).abs().max() / 100


def test_the_state_goes_on_the_same() -> None:
    agent = make_agent(optimizer="adam", average_span=2)
    agent.learn(make_transitions(0))
    agent.memory.anchor(0.1, task="0")
    agent.enter(1)
    agent.learn(make_transitions(1))
    twin = make_agent(optimizer="adam", average_span=2)
    twin.load_state_dict(copy.deepcopy(agent.state_dict()))
    for one in (agent, twin):
        one.learn(make_transitions(2))
        one.adopt_average()
        one.enter(0)
        one.learn(make_transitions(3))
    mine, theirs = agent.network.state_dict(), twin.network.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_the_mean_of_the_last_parameters_can_be_adopted() -> None:
    agent = make_agent(average_span=3)
    seen = []
    for seed in range(3):
        agent.learn(make_transitions(seed))
        seen.append(parameters_to_vector(agent.network.parameters()).detach())
    agent.adopt_average()
    expected = sum(seen) / 3
    torch.testing.assert_close(parameters_to_vector(agent.network.parameters()), expected)
    agent.adopt_average()  # nothing was learned since: the parameters stay
    torch.testing.assert_close(parameters_to_vector(agent.network.parameters()), expected)


def test_the_mean_can_be_tried_for_a_while() -> None:
    agent = make_agent(average_span=3)
    seen = []
    for seed in range(2):
        agent.learn(make_transitions(seed))
        seen.append(parameters_to_vector(agent.network.parameters()).detach())
    with agent.averaged():
        tried = parameters_to_vector(agent.network.parameters()).detach()
    torch.testing.assert_close(tried, sum(seen) / 2)
    assert torch.equal(parameters_to_vector(agent.network.parameters()), seen[-1])
    agent.adopt_average()  # the mean is still there
    assert torch.equal(parameters_to_vector(agent.network.parameters()), tried)


def test_another_task_begins_another_average() -> None:
    agent = make_agent(average_span=100)
    agent.learn(make_transitions(0))
    agent.enter(1)
    agent.learn(make_transitions(1))
    before = parameters_to_vector(agent.network.parameters()).detach()
    agent.adopt_average()
    torch.testing.assert_close(parameters_to_vector(agent.network.parameters()), before)


def test_consolidating_holds_the_shared_weights_with_the_shaped_fisher() -> None:
    agent, random = make_agent(strength=2.0, floor=0.1, normalize=10.0), np.random.default_rng
    fisher = agent.consolidate([make_transitions()], random(0))
    assert agent.memory.tasks == ("0",)
    again = agent.fisher([make_transitions()], random(0))
    assert all(torch.equal(fisher[name], again[name]) for name in again)
    with torch.no_grad():
        for parameter in agent.network.parameters():
            parameter += 1  # contexts too, which are not held
    assert agent.memory.penalty().item() == pytest.approx(2.0 / 2 * 10.0, rel=1e-4)


def test_consolidating_again_replaces_the_well_of_the_context() -> None:
    agent, random = make_agent(), np.random.default_rng(0)
    agent.consolidate([make_transitions()], random)
    agent.enter(1)
    agent.consolidate([make_transitions()], random)
    agent.enter(0)
    agent.consolidate([make_transitions()], random)
    assert agent.memory.tasks == ("1", "0")


def test_a_fisher_of_zero_is_warned_of() -> None:
    agent = make_agent()
    agent.network.contexts[0].biases[-2].data[:] = -1e3  # all hidden units are dead
    with pytest.warns(EWCWarning, match="the Fisher is zero for every weight"):
        agent.consolidate([make_transitions()], np.random.default_rng(0))
