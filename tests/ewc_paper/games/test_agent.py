"""The agent without gates: its network, its loss, what it explores and what it remembers."""

import copy
import itertools
import math
from collections import Counter
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.games import ACTIONS, make_agent, make_gated_agent, make_transitions
from support.memory import Problem
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from ewc import KroneckerFisher
from ewc.diagnostics import EWCWarning
from ewc.recognition.config import RecognizerConfig
from ewc_paper.experiments.games.run import Games
from ewc_paper.games.agent import (
    Agent,
    CappedRMSProp,
    ParameterAverage,
    QLearning,
    copy_parameters,
    exploration_rate,
)
from ewc_paper.games.config import ALONE, ARMS, PROTECTED, RANDOM, SINGLE, AgentConfig
from ewc_paper.games.network import NETWORKS, QNetwork
from ewc_paper.options import check_options, groups


def test_groups_share_no_setting_and_together_are_the_agent() -> None:
    found = groups(AgentConfig)
    assert AgentConfig not in found
    assert sum(len(fields(group)) for group in found) == len(fields(AgentConfig))


def test_the_defaults_fit_their_limits() -> None:
    check_options(AgentConfig, asdict(AgentConfig()))


def test_the_recognizers_settings_are_the_librarys() -> None:
    librarys = {one.name: one for one in fields(RecognizerConfig)}
    ours = [one for one in fields(AgentConfig) if one.name in librarys]
    assert {one.name for one in ours} == {"levels", "prior", "window", "side"}
    for one in ours:
        other = librarys[one.name]
        assert one.default == other.default
        for limit in ("low", "high"):
            assert one.metadata[limit] == other.metadata[limit]


def test_the_arms_are_those_of_the_experiment() -> None:
    assert set(Games.preset("quick").arms) <= ARMS.keys()
    assert {SINGLE, RANDOM} == set(ALONE) < set(ARMS)


def test_what_is_in_the_name_of_an_arm_is_what_it_has() -> None:
    assert [name for name, arm in ARMS.items() if "ewc" in name] == list(PROTECTED)
    for name, arm in ARMS.items():
        assert arm.gated == ("gates" in name)
        assert arm.recognizes == (arm.protected and not name.endswith("labels"))
        kinds = {True: "kronecker", False: "diagonal"} if "ewc" in name else {False: None}
        assert arm.wells == kinds["kronecker" in name]


def test_wells_gates_and_recognition_combine_in_every_way() -> None:
    combined = [(arm.wells, arm.gated, arm.recognizes) for arm in ARMS.values() if arm.protected]
    ways = itertools.product(("diagonal", "kronecker"), (False, True), (False, True))
    assert Counter(combined) == Counter(ways)


def test_the_paper_has_no_gates_and_the_diagonal() -> None:
    arms = [ARMS[arm] for arm in Games.preset("paper").arms]
    assert not any(arm.gated for arm in arms)
    assert {arm.wells for arm in arms} == {None, "diagonal"}


def test_titles_differ() -> None:
    assert len({arm.title for arm in ARMS.values()}) == len(ARMS)


SHAPES = {
    **dict.fromkeys(("minatar", "minatar-wide"), (10, 10, 10)),
    **dict.fromkeys(("small", "small-wide"), (4, 42, 42)),
}


def make(name: str = "minatar", contexts: int = 2) -> QNetwork:
    network = QNetwork(NETWORKS[name], SHAPES.get(name, (4, 84, 84)), 18, seed=0)
    for _ in range(contexts):
        network.add_context()
    return network


def some_states(name: str = "minatar") -> torch.Tensor:
    shape = SHAPES.get(name, (4, 84, 84))
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_is_wx_plus_b_times_g(name: str) -> None:
    network = make(name).double()
    with torch.no_grad():
        for parameter in network.contexts[1].parameters():
            parameter.uniform_(-1, 1)
    network.enter(1)
    own = network.contexts[1]
    x = some_states(name).double() / 255
    last = len(network.layers) - 1
    for number, layer in enumerate(network.layers):
        weight, gain, bias = layer.weight, own.gains[number], own.biases[number]
        if weight.dim() == 4:
            y = F.conv2d(x, weight, stride=layer.stride)
            y = (y + bias.view(1, -1, 1, 1)) * gain.view(1, -1, 1, 1)
        else:
            flat = x.permute(0, 2, 3, 1).flatten(1) if x.dim() == 4 else x
            y = (flat @ weight.T + bias) * gain
        x = y if number == last else y.clamp(min=0)
    torch.testing.assert_close(network(some_states(name)), x)


def test_folded_gains_give_the_same_values_and_gradients() -> None:
    network, gradients = make("minatar").double(), []
    with torch.no_grad():
        for parameter in network.contexts[0].parameters():
            parameter.uniform_(-1, 1)
    for folded in (False, True):
        values = network(some_states(), folded=folded)
        own = [*network.layers.parameters(), *network.contexts[0].parameters()]
        gradients.append((values, *torch.autograd.grad(values.square().sum(), own)))
    for plain, folded in zip(*gradients, strict=True):
        torch.testing.assert_close(folded, plain)


def test_the_paper_s_network_has_about_four_times_the_parameters_of_the_standard_one() -> None:
    sizes = {
        name: sum(p.numel() for p in make(name).layers.parameters()) for name in ("paper", "nature")
    }
    assert 3.5 < sizes["paper"] / sizes["nature"] < 4.5


def test_a_new_context_changes_nothing_and_its_own_numbers_change_it_alone() -> None:
    network, states = make(), some_states()
    network.enter(0)
    before = network(states)
    network.add_context()
    torch.testing.assert_close(network(states), before)
    network.enter(2)
    torch.testing.assert_close(network(states), before)  # gains 1, biases 0
    with torch.no_grad():
        network.contexts[2].gains[0].mul_(2)
    assert not torch.allclose(network(states), before)
    network.enter(0)
    torch.testing.assert_close(network(states), before)


def test_initial_weights_are_within_one_over_the_root_of_the_incoming_units() -> None:
    for layer in make("nature").layers:
        bound = layer.weight[0].numel() ** -0.5
        assert 0.99 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_bad_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        QNetwork(NETWORKS["paper"], (4, 20, 20), 18, seed=0)
    with pytest.raises(ValueError, match="add_context"):
        make().enter(5)


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


def test_kronecker_wells_have_factors_of_every_layer_in_the_scale_of_the_fisher() -> None:
    agent = make_agent("kronecker", kronecker_strength=3.0, strength=7.0, floor=0.5, normalize=9.0)
    agent.consolidate([make_transitions()], np.random.default_rng(0))
    fisher = agent.fisher([make_transitions()], np.random.default_rng(0))
    assert isinstance(fisher, KroneckerFisher)
    assert fisher.factors.keys() == shared(agent).keys()
    expected = 0.0
    with torch.no_grad():
        for name, parameter in shared(agent).items():
            move = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) / 100
            parameter += move
            own, delta = fisher.factors[name], move.flatten(1).double()
            weighed = own.outputs.double() @ delta @ own.inputs.double()
            expected += 3.0 / 2 * float((delta * weighed).sum())
    assert agent.memory.penalty().item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.filterwarnings("error::ewc.diagnostics.EWCWarning")
def test_the_state_with_kronecker_wells_goes_on_the_same() -> None:
    """Also with forces that are held, toward other wells than that of the present context."""
    options: dict[str, Any] = {"optimizer": "adam", "lr": 1e-2, "kronecker_strength": 100.0}
    agent, random = make_agent("kronecker", **options), np.random.default_rng(0)
    for context in (0, 1, 2, 0):
        agent.enter(context)
        agent.learn(make_transitions(context))
        agent.consolidate([make_transitions(context)], random)
    agent.enter(1)
    for seed in range(20):
        agent.learn(make_transitions(seed))
    assert agent.memory._forces.waiting
    assert any(bool(held.force.any()) for held in agent.memory._forces.layers.values())
    twin = make_agent("kronecker", **options)
    twin.enter(1)
    twin.load_state_dict(copy.deepcopy(agent.state_dict()))
    for one in (agent, twin):
        one.learn(make_transitions(4))
        one.enter(0)
        one.learn(make_transitions(5))
    for mine, theirs in zip(agent.network.parameters(), twin.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_pull_that_waits_is_taken_before_the_average_is_adopted() -> None:
    options: dict[str, Any] = {"optimizer": "adam", "lr": 1e-2, "kronecker_strength": 1e3}
    agent = make_agent("kronecker", average_span=10, **options)
    agent.consolidate([make_transitions()], np.random.default_rng(0))
    agent.enter(1)
    for seed in range(3):
        agent.learn(make_transitions(seed))
    assert agent.memory._forces.waiting
    with agent.averaged():
        tried = parameters_to_vector(agent.network.parameters()).clone()
    agent.adopt_average()
    agent.memory.settle()
    assert torch.equal(parameters_to_vector(agent.network.parameters()), tried)


@pytest.mark.parametrize("make", [make_agent, make_gated_agent])
def test_kronecker_wells_keep_the_values_of_a_task_while_another_is_learned(make: Any) -> None:
    states, change = torch.from_numpy(make_transitions().states), []
    for strength in (0.0, 1e4):
        agent = make("kronecker", optimizer="adam", lr=1e-4, kronecker_strength=strength)
        agent.consolidate([make_transitions()] * 10, np.random.default_rng(0))
        before = agent.action_values(states)
        agent.enter(1)
        for seed in range(30):
            agent.learn(make_transitions(seed + 1))
        agent.enter(0)
        change.append(float((agent.action_values(states) - before).norm()))
    free, held = change
    assert held < free / 5


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


def make_learning(*, double: bool) -> QLearning:
    """A network and a target that differs from it, as between two synchronizations."""
    learning = make_agent(double=double).learning
    for parameter in learning.target.layers.parameters():
        parameter.mul_(1.3)
    learning.network.double()
    learning.target.double()
    return learning


@pytest.mark.parametrize("double", [True, False])
@torch.no_grad()
def test_the_loss_is_that_of_double_q_learning(double: bool) -> None:
    learning, batch = make_learning(double=double), make_transitions()
    losses = []
    for i in range(len(batch.states)):
        state, following = (
            torch.from_numpy(x[i : i + 1]) for x in (batch.states, batch.next_states)
        )
        chooser = learning.network if double else learning.target
        best = int(chooser(following)[0].argmax())
        y = batch.rewards[i] + batch.discounts[i] * float(learning.target(following)[0, best])
        delta = float(learning.network(state)[0, batch.actions[i]]) - y
        losses.append(0.5 * delta**2 if abs(delta) < 1 else abs(delta) - 0.5)
    loss = learning.td_loss(batch, learning.td_targets(batch))
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-6)


def test_no_gradient_flows_through_the_targets() -> None:
    learning = make_agent().learning
    assert not learning.td_targets(make_transitions()).requires_grad


@pytest.mark.parametrize(
    ("agent_steps", "rate"), [(0, 1.0), (100, 1.0), (150, 0.6), (200, 0.2), (10_000, 0.2)]
)
def test_the_exploration_rate_falls_from_one_to_its_final_value(
    agent_steps: int, rate: float
) -> None:
    found = exploration_rate(agent_steps, start=100, end=200, final=0.2)
    assert found == pytest.approx(rate)


def test_without_a_span_the_exploration_rate_falls_at_once() -> None:
    assert exploration_rate(100, start=100, end=100, final=0.2) == 1.0
    assert exploration_rate(101, start=100, end=100, final=0.2) == pytest.approx(0.2)


def test_each_step_of_rmsprop_is_the_equation() -> None:
    lr, max_lr, alpha = 0.02, 0.1, 0.9
    weights = nn.Parameter(torch.tensor([0.5, -1.0, 0.0], dtype=torch.float64))
    optimizer = CappedRMSProp([weights], lr=lr, max_lr=max_lr, alpha=alpha)
    expected = weights.tolist()
    squares, means = [0.0] * 3, [0.0] * 3
    for gradients in ([1.0, -0.2, 0.0], [0.5, 0.3, 0.0], [-2.0, 0.1, 1e-9]):
        weights.grad = torch.tensor(gradients, dtype=torch.float64)
        optimizer.step()
        for i, gradient in enumerate(gradients):
            squares[i] = alpha * squares[i] + (1 - alpha) * gradient**2
            means[i] = alpha * means[i] + (1 - alpha) * gradient
            root = math.sqrt(squares[i] - means[i] ** 2 + (lr / max_lr) ** 2)
            expected[i] -= lr * gradient / root
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_small_gradient_moves_a_weight_at_the_maximum_rate_and_none_faster() -> None:
    weights = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = CappedRMSProp([weights], lr=2.5e-4, max_lr=2.5e-3)
    weights.grad = torch.tensor([1e-6, 3.0], dtype=torch.float64)
    optimizer.step()
    rates = -weights.detach() / weights.grad
    assert float(rates[0]) == pytest.approx(2.5e-3, rel=1e-6)
    assert float(rates[1]) < 2.5e-3 / 5


def test_rmsprop_leaves_weights_without_a_gradient() -> None:
    weights, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = CappedRMSProp([weights, idle], lr=0.1, max_lr=1.0)
    optimizer.step()
    weights.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(idle.detach(), torch.ones(2))
    assert (weights < 1).all()


def test_the_proximal_pull_on_rmsprop_reaches_the_minimum() -> None:
    problem = Problem()
    minimum = problem.minimum()
    optimizer = CappedRMSProp(list(problem.model.parameters()), lr=0.03, max_lr=0.3, alpha=0.9)
    problem.memory.attach(optimizer)
    problem.train(optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)


def make_values(count: int) -> list[list[Tensor]]:
    """The two parameters after each of some updates."""
    generator = torch.Generator().manual_seed(0)
    return [
        [torch.randn(3, generator=generator), torch.randn(2, 2, generator=generator)]
        for _ in range(count)
    ]


def follow(average: ParameterAverage, values: list[list[Tensor]]) -> list[Tensor]:
    """The parameters after all updates, each of which was averaged."""
    parameters = [torch.zeros(3), torch.zeros(2, 2)]
    for value in values:
        copy_parameters(value, parameters)
        average.update(parameters)
    return parameters


def expected(values: list[list[Tensor]], span: int) -> list[Tensor]:
    """A plain mean of the first, then a running one."""
    mean = [torch.stack(value[:span]).mean(0) for value in zip(*values, strict=True)]
    for value in values[span:]:
        mean = [m + (v - m) / span for m, v in zip(mean, value, strict=True)]
    return mean


@pytest.mark.parametrize("updates", [1, 2, 4, 9])
def test_the_average_is_a_plain_mean_and_then_a_running_one(updates: int) -> None:
    average, values = ParameterAverage(span=4), make_values(updates)
    parameters = follow(average, values)
    average.adopt(parameters)
    for one, other in zip(parameters, expected(values, 4), strict=True):
        torch.testing.assert_close(one, other)


def test_the_average_can_be_applied_for_a_while() -> None:
    average, values = ParameterAverage(span=4), make_values(3)
    parameters = follow(average, values)
    with average.applied(parameters):
        for one, other in zip(parameters, expected(values, 4), strict=True):
            torch.testing.assert_close(one, other)
    assert all(torch.equal(one, last) for one, last in zip(parameters, values[-1], strict=True))


@pytest.mark.parametrize("span", [0, 4])
def test_without_updates_to_average_the_parameters_stay(span: int) -> None:
    average, values = ParameterAverage(span), make_values(2)
    parameters = follow(average, values)
    average.restart()
    with average.applied(parameters):
        assert torch.equal(parameters[0], values[-1][0])
    average.adopt(parameters)
    assert torch.equal(parameters[0], values[-1][0])


def test_the_state_of_an_average_continues_in_another() -> None:
    first, second, values = ParameterAverage(3), ParameterAverage(3), make_values(6)
    follow(first, values[:2])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    ends = [follow(average, values[2:]) for average in (first, second)]
    for average, parameters in zip((first, second), ends, strict=True):
        average.adopt(parameters)
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


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


def test_the_fisher_is_the_sum_over_all_actions_of_the_squared_gradient() -> None:
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


def test_contexts_have_no_part_in_the_fisher() -> None:
    agent = double_agent()
    fisher = agent.fisher([make_transitions()], np.random.default_rng(0))
    assert fisher.keys() == shared(agent).keys()
