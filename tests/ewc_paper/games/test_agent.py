"""The agent's loss against a loop over transitions, and what its steps may change."""

import copy

import numpy as np
import pytest
import torch
from support.acting import make_agent, make_batch
from torch.nn.utils import parameters_to_vector

from ewc_paper.games.agent import Agent


def drift_apart(agent: Agent) -> None:
    """Make the target differ from the network, as it does between its updates."""
    with torch.no_grad():
        for parameter in agent.target.layers.parameters():
            parameter.mul_(1.3)


@pytest.mark.parametrize("double", [True, False])
@torch.no_grad()
def test_the_loss_is_that_of_double_q_learning(double: bool) -> None:
    agent, batch = make_agent(double=double), make_batch()
    drift_apart(agent)
    for network in (agent.network, agent.target):
        network.double()
    losses = []
    for i in range(len(batch.states)):
        state, following = (
            torch.from_numpy(x[i : i + 1]) for x in (batch.states, batch.next_states)
        )
        chooser = agent.network if double else agent.target
        best = int(chooser(following)[0].argmax())
        y = batch.rewards[i] + batch.discounts[i] * float(agent.target(following)[0, best])
        delta = float(agent.network(state)[0, batch.actions[i]]) - y
        losses.append(0.5 * delta**2 if abs(delta) < 1 else abs(delta) - 0.5)
    loss = agent.td_loss(batch, agent.td_targets(batch))
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-6)


def test_learning_changes_the_shared_weights_and_the_present_context_alone() -> None:
    agent = make_agent()
    agent.enter(1)
    before = {name: w.detach().clone() for name, w in agent.network.named_parameters()}
    agent.learn(make_batch())
    changed = {
        name for name, w in agent.network.named_parameters() if not torch.equal(w, before[name])
    }
    assert changed == {name for name in before if not name.startswith("contexts.0")}


def test_the_loss_falls_on_a_fixed_batch() -> None:
    agent, batch = make_agent(optimizer="adam", lr=1e-3), make_batch()
    y = agent.td_targets(batch)
    first = agent.td_loss(batch, y).item()
    for _ in range(100):
        agent.learn(batch)
    assert agent.td_loss(batch, y).item() < first / 5


def test_rmsprop_never_moves_a_weight_by_more_than_the_maximum_rate_allows() -> None:
    """A gradient of the minibatch's sum moves a weight by at most max_lr times it."""
    agent, batch = make_agent(max_gradient_norm=1e9), make_batch()
    before = agent.network.layers[-1].weight.detach().clone()
    agent.learn(batch)
    weight = agent.network.layers[-1].weight
    limit = agent.settings.max_lr * agent.settings.batch_size * weight.grad.abs()
    moved = (weight.detach() - before).abs()
    assert (moved <= limit + 1e-7).all()  # to the rounding of a weight
    assert (moved > 0).any()


def test_gradients_are_clipped_to_the_norm() -> None:
    agent, batch = make_agent(max_gradient_norm=0.08), make_batch()
    agent.learn(batch)
    squares = sum(w.grad.square().sum() for w in agent.network.parameters() if w.grad is not None)
    assert float(squares) ** 0.5 == pytest.approx(0.08 / 8, rel=1e-3)


def test_exploration_takes_random_actions_as_often_as_epsilon_says() -> None:
    agent, states = make_agent(), np.repeat(make_batch().states[:1], 4000, axis=0)
    greedy = agent.act(states[:1], 0.0, np.random.default_rng(0))[0]
    actions = agent.act(states, 0.3, np.random.default_rng(0))
    assert np.mean(actions != greedy) == pytest.approx(0.3 * 5 / 6, abs=0.03)


def test_a_task_trained_again_is_not_pulled_by_its_own_old_well() -> None:
    agent = make_agent(strength=1e9, fresh_optimizer=True)
    agent.memory.anchor(1.0, task="0")
    before = agent.network.layers[0].weight.detach().clone()
    agent.enter(0)
    agent.learn(make_batch())
    moved = (agent.network.layers[0].weight - before).abs().max()
    agent.enter(1)  # now the well of 0 holds
    held = agent.network.layers[0].weight.detach().clone()
    for seed in range(5):
        agent.learn(make_batch(seed))
    assert moved > 1e-5
    back = (agent.network.layers[0].weight - before).abs().max()
    assert back < (held - before).abs().max() / 100


def test_the_state_goes_on_the_same() -> None:
    agent = make_agent(optimizer="adam", average_span=2)
    agent.learn(make_batch(0))
    agent.memory.anchor(0.1, task="0")
    agent.enter(1)
    agent.learn(make_batch(1))
    twin = make_agent(optimizer="adam", average_span=2)
    twin.load_state_dict(copy.deepcopy(agent.state_dict()))
    for one in (agent, twin):
        one.learn(make_batch(2))
        one.settle()
        one.enter(0)
        one.learn(make_batch(3))
    mine, theirs = agent.network.state_dict(), twin.network.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_settling_puts_the_mean_of_the_last_parameters_in_their_place() -> None:
    agent, span = make_agent(average_span=3), 3
    seen = []
    for seed in range(3):
        agent.learn(make_batch(seed))
        seen.append(parameters_to_vector(agent.network.parameters()).detach())
    agent.settle()
    expected = sum(seen) / span
    torch.testing.assert_close(parameters_to_vector(agent.network.parameters()), expected)
    agent.settle()  # nothing was learned since: the parameters stay
    torch.testing.assert_close(parameters_to_vector(agent.network.parameters()), expected)


def test_the_mean_can_be_tried_for_a_while() -> None:
    agent = make_agent(average_span=3)
    seen = []
    for seed in range(2):
        agent.learn(make_batch(seed))
        seen.append(parameters_to_vector(agent.network.parameters()).detach())
    with agent.settled():
        tried = parameters_to_vector(agent.network.parameters()).detach()
    torch.testing.assert_close(tried, sum(seen) / 2)
    assert torch.equal(parameters_to_vector(agent.network.parameters()), seen[-1])
    agent.settle()  # the mean is still there
    assert torch.equal(parameters_to_vector(agent.network.parameters()), tried)


def test_another_task_begins_another_average() -> None:
    agent = make_agent(average_span=100)
    agent.learn(make_batch(0))
    agent.enter(1)
    agent.learn(make_batch(1))
    before = parameters_to_vector(agent.network.parameters()).detach()
    agent.settle()
    torch.testing.assert_close(parameters_to_vector(agent.network.parameters()), before)
