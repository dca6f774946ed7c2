"""What an agent changes that trains a part of its network, and what it remembers of the others."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from support.games import ACTIONS, STATE_SHAPE, make_gated_agent, make_transitions
from torch import Tensor

from ewc import KroneckerFactors
from ewc.diagnostics import EWCWarning
from ewc.memory import Curvature
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import ARMS, AgentConfig
from ewc_paper.games.gated_agent import GatedAgent, Gates, make_agent, narrowed
from ewc_paper.games.network import NETWORKS, Architecture, QNetwork

STATES = torch.from_numpy(make_transitions(7).states)


def values_in(agent: GatedAgent, context: int) -> Tensor:
    present = agent.context
    agent.act_in(context)
    values = agent.action_values(STATES)
    agent.act_in(present)
    return values


def pool_of(agent: GatedAgent) -> dict[str, Tensor]:
    """The shared weights of the whole network, with what is being trained."""
    agent.enter(agent.context)
    return {name: weight.clone() for name, weight in agent.state_dict()["pools"]["0"].items()}


def used_by(agent: GatedAgent, context: int) -> dict[str, Tensor]:
    pool = {name: torch.zeros_like(weight) for name, weight in pool_of(agent).items()}
    agent._gates.put(
        {n: torch.ones_like(w) for n, w in agent._gates.cut(pool, context).items()}, context, pool
    )
    return {name: weight.bool() for name, weight in pool.items()}


def test_the_arm_decides() -> None:
    config = AgentConfig(network="minatar", history=1)
    for arm in ARMS.values():
        agent = make_agent(config, STATE_SHAPE, ACTIONS, 0, arm)
        assert type(agent) is (GatedAgent if arm.gated else Agent)
        inner = agent._agent if isinstance(agent, GatedAgent) else agent
        assert inner.memory.curvature == (arm.wells or "diagonal")


def test_learning_changes_the_weights_that_the_context_uses_and_no_others() -> None:
    agent = make_gated_agent(lr=1e-2)
    agent.enter(1)
    used, before = used_by(agent, 1), pool_of(agent)
    for seed in range(5):
        agent.learn(make_transitions(seed))
    for name, weight in pool_of(agent).items():
        assert torch.equal(weight[~used[name]], before[name][~used[name]])
        assert (weight[used[name]] != before[name][used[name]]).double().mean() > 0.5


def test_what_was_learned_is_there_when_the_context_is_entered_again() -> None:
    agent = make_gated_agent(lr=1e-2)
    agent.learn(make_transitions())
    before = agent.action_values(STATES)
    assert torch.equal(values_in(agent, 0), before)
    agent.enter(1)
    torch.testing.assert_close(values_in(agent, 0), before, rtol=0, atol=0)
    agent.enter(0)
    assert torch.equal(agent.action_values(STATES), before)


def test_another_context_sees_what_is_being_trained() -> None:
    agent = make_gated_agent(lr=1e-2)
    agent.learn(make_transitions())
    agent.enter(1)
    before = values_in(agent, 0)
    agent.learn(make_transitions(1))
    after = values_in(agent, 0)
    assert not torch.equal(after, before)
    agent.enter(0)
    assert torch.equal(agent.action_values(STATES), after)


def test_acting_in_a_context_takes_the_greedy_action_of_its_values() -> None:
    agent = make_gated_agent(lr=1e-2)
    agent.learn(make_transitions())
    agent.enter(1)
    agent.act_in(0)
    actions = agent.act(STATES.numpy(), 0.0, np.random.default_rng(0))
    assert actions.tolist() == agent.action_values(STATES).argmax(1).tolist()
    agent.act_in(1)


def test_a_solution_holds_the_weights_in_common_and_leaves_the_rest_free() -> None:
    agent = make_gated_agent(lr=1e-2, strength=1e9, floor=1.0)
    agent.consolidate([make_transitions()], np.random.default_rng(0))
    assert agent.tasks == ("0",)
    agent.enter(1)
    before, old, new = pool_of(agent), used_by(agent, 0), used_by(agent, 1)
    for seed in range(5):
        agent.learn(make_transitions(seed))
    for name, weight in pool_of(agent).items():
        moved = (weight - before[name]).abs()
        both = old[name] & new[name]
        assert both.any()
        assert moved[both].max() < 1e-6
        assert moved[new[name] & ~both].max() > 1e-3


def test_a_context_trained_again_is_not_pulled_by_its_own_solution() -> None:
    agent = make_gated_agent(lr=1e-2, strength=1e9, floor=1.0)
    agent.consolidate([make_transitions()], np.random.default_rng(0))
    agent.enter(1)
    agent.enter(0)
    before, used = pool_of(agent), used_by(agent, 0)
    agent.learn(make_transitions())
    name = "layers.0.weight"
    assert (pool_of(agent)[name] - before[name])[used[name]].abs().max() > 1e-3


def test_consolidating_again_replaces_the_solution_and_forgetting_drops_it() -> None:
    agent, random = make_gated_agent(strength=1e9, floor=1.0, lr=1e-2), np.random.default_rng(0)
    for context in (0, 1, 0):
        agent.enter(context)
        agent.learn(make_transitions())
        agent.consolidate([make_transitions()], random)
    assert agent.tasks == ("1", "0")
    agent.enter(1)
    agent.forget(0)
    assert agent.tasks == ("1",)
    before, used = pool_of(agent), used_by(agent, 0)
    agent.learn(make_transitions())
    name = "layers.0.weight"
    assert (pool_of(agent)[name] - before[name])[used[name]].abs().max() > 1e-3


@pytest.mark.filterwarnings("error::ewc.diagnostics.EWCWarning")
def test_a_context_that_was_entered_and_left_at_once_can_be_consolidated() -> None:
    agent, random = make_gated_agent(), np.random.default_rng(0)
    for context in (0, 1):
        agent.enter(context)
        agent.consolidate([make_transitions()], random)
    assert agent.tasks == ("0", "1")


def test_the_fisher_is_returned_without_floor_and_trace() -> None:
    agent, random = make_gated_agent(floor=0.5, normalize=10.0), np.random.default_rng
    fisher = agent.consolidate([make_transitions()], random(0))
    again = agent.fisher([make_transitions()], random(0))
    assert all(torch.equal(fisher[name], again[name]) for name in again)
    precision = agent.state_dict()["solutions"]["0"]["precision"]
    assert sum(float(p.sum()) for p in precision.values()) == pytest.approx(10.0, rel=1e-5)
    assert all((p > 0).all() for p in precision.values())


def test_a_fisher_of_zero_is_warned_of() -> None:
    agent = make_gated_agent()
    agent._agent.network.contexts[0].biases[-2].data[:] = -1e3  # all hidden units are dead
    with pytest.warns(EWCWarning, match="the Fisher is zero for every weight"):
        agent.consolidate([make_transitions()], np.random.default_rng(0))


def test_a_context_that_flickers_leaves_the_target_network_alone() -> None:
    agent = make_gated_agent(lr=1e-2)
    agent.enter(1)
    before = agent._agent.target(STATES)
    agent.learn(make_transitions())
    agent.enter(0)
    agent.enter(1)
    assert torch.equal(agent._agent.target(STATES), before)
    agent.update_target()
    assert torch.equal(agent._agent.target(STATES), agent._agent.network(STATES))


def test_the_average_can_be_tried_in_every_context_and_adopted() -> None:
    agent = make_gated_agent(lr=1e-2, average_span=10)
    agent.enter(1)
    for seed in range(3):
        agent.learn(make_transitions(seed))
    last = values_in(agent, 0), values_in(agent, 1)
    with agent.averaged():
        tried = values_in(agent, 0), values_in(agent, 1)
    assert all(not torch.equal(one, other) for one, other in zip(last, tried, strict=True))
    assert torch.equal(values_in(agent, 0), last[0])
    assert torch.equal(values_in(agent, 1), last[1])
    agent.adopt_average()
    assert torch.equal(values_in(agent, 0), tried[0])
    assert torch.equal(values_in(agent, 1), tried[1])


@pytest.mark.parametrize("wells", ["diagonal", "kronecker"])
def test_the_state_goes_on_the_same(wells: Curvature) -> None:
    strength = {"strength": 10.0, "kronecker_strength": 100.0}
    options: dict[str, Any] = {"wells": wells, "average_span": 2, "lr": 1e-2, **strength}
    agent, random = make_gated_agent(**options), np.random.default_rng(0)
    for context in (0, 1, 2):
        agent.enter(context)
        agent.learn(make_transitions(context))
        agent.consolidate([make_transitions()], random)
    agent.enter(1)
    agent.learn(make_transitions(3))
    twin = make_gated_agent(**options)
    twin.load_state_dict(copy.deepcopy(agent.state_dict()))
    for one in (agent, twin):
        one.learn(make_transitions(4))
        one.adopt_average()
        one.enter(0)
        one.learn(make_transitions(5))
    assert agent.tasks == twin.tasks
    mine, theirs = pool_of(agent), pool_of(twin)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for context in (0, 1, 2):
        assert torch.equal(values_in(agent, context), values_in(twin, context))


SHAPES = {"minatar": (10, 10, 10), "small": (4, 42, 42)}
ALL_ACTIONS = 18
SHARES = [(0.5, 0.0), (0.0, 0.5), (0.7, 0.3)]


def make(name: str, gates: float, filter_gates: float) -> tuple[QNetwork, QNetwork, Gates]:
    whole = QNetwork(NETWORKS[name], SHAPES[name], ALL_ACTIONS, seed=0)
    part = QNetwork(
        narrowed(NETWORKS[name], gates, filter_gates), SHAPES[name], ALL_ACTIONS, seed=1
    )
    for network in (whole, part):
        network.add_context()
        network.double()
    return whole, part, Gates(whole, part, seed=0)


def weights_of(network: QNetwork) -> dict[str, Tensor]:
    return {f"layers.{n}.weight": layer.weight.data for n, layer in enumerate(network.layers)}


def test_a_part_has_the_units_whose_gates_are_open() -> None:
    narrow = narrowed(NETWORKS["minatar"], gates=0.75, filter_gates=0.25)
    assert narrow == Architecture(((12, 3, 1),), 32)
    assert narrowed(NETWORKS["paper"], 0, 0) == NETWORKS["paper"]


@pytest.mark.parametrize(("gates", "filter_gates"), SHARES)
@pytest.mark.parametrize("name", SHAPES)
def test_the_part_computes_what_the_whole_does_with_closed_gains(
    name: str, gates: float, filter_gates: float
) -> None:
    whole, part, chosen = make(name, gates, filter_gates)
    for context in (0, 1):
        units = chosen.units(context)
        for number, used in enumerate(units):
            gain, bias = torch.rand(2, whole.widths[number], dtype=torch.float64) + 0.1
            whole.contexts[0].gains[number].data = torch.zeros_like(gain).index_copy(
                0, used, gain[used]
            )
            whole.contexts[0].biases[number].data = bias
            part.contexts[0].gains[number].data = gain[used]
            part.contexts[0].biases[number].data = bias[used]
        for target, weight in zip(
            part.layers, chosen.cut(weights_of(whole), context).values(), strict=True
        ):
            target.weight.data = weight
        states = torch.rand(3, *SHAPES[name], dtype=torch.float64)
        torch.testing.assert_close(part(states), whole(states), rtol=1e-12, atol=1e-12)


def test_each_context_has_its_own_units_which_depend_on_the_seed_alone() -> None:
    whole, part, gates = make("minatar", 0.75, 0.25)
    sizes = [[len(units) for units in gates.units(context)] for context in range(3)]
    assert sizes == [[12, 32, ALL_ACTIONS]] * 3
    assert not torch.equal(gates.units(0)[1], gates.units(1)[1])
    assert torch.equal(gates.units(0)[2], torch.arange(ALL_ACTIONS))
    again = Gates(whole, part, seed=0)
    for context in (1, 0):
        for one, other in zip(gates.units(context), again.units(context), strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(Gates(whole, part, seed=1).units(0)[1], gates.units(0)[1])


def test_what_is_put_back_is_cut_again_and_nothing_else_changes() -> None:
    whole, _, gates = make("small", 0.5, 0.5)
    pool = weights_of(whole)
    before = {name: weight.clone() for name, weight in pool.items()}
    changed = {name: weight + 1 for name, weight in gates.cut(pool, 0).items()}
    gates.put(changed, 0, pool)
    for name, weight in gates.cut(pool, 0).items():
        assert torch.equal(weight, changed[name])
    for name, weight in pool.items():
        moved = weight != before[name]
        assert int(moved.sum()) == changed[name].numel()


def random_factors(weight: Tensor) -> KroneckerFactors:
    inputs, outputs = (torch.randn(n, n).double() for n in (weight[0].numel(), len(weight)))
    return KroneckerFactors(inputs @ inputs.t(), outputs @ outputs.t())


@pytest.mark.parametrize("name", SHAPES)
def test_factors_of_one_context_weigh_a_change_of_another_as_the_change_that_they_see(
    name: str,
) -> None:
    whole, _, gates = make(name, 0.5, 0.5)
    pool = weights_of(whole)
    factors = {name: random_factors(weight) for name, weight in gates.cut(pool, 0).items()}
    change = {name: torch.randn_like(weight) for name, weight in gates.cut(pool, 1).items()}
    seen = gates.moved(change, 1, 0, pool)
    moved = gates.moved_factors(factors, 0, 1, pool)
    for name, own in factors.items():
        energies = [
            (delta.flatten(1) * (at.outputs @ delta.flatten(1) @ at.inputs)).sum()
            for delta, at in ((seen[name], own), (change[name], moved[name]))
        ]
        torch.testing.assert_close(energies[1], energies[0])
        assert float(energies[0]) > 0


def test_numbers_of_one_context_reach_another_on_the_weights_in_common_alone() -> None:
    whole, _, gates = make("small", 0.5, 0.5)
    pool = weights_of(whole)
    ones = {name: torch.ones_like(weight) for name, weight in gates.cut(pool, 0).items()}
    moved = gates.moved(ones, 0, 1, pool)
    for weight in moved.values():
        assert set(weight.unique().tolist()) == {0.0, 1.0}
    hidden = set(gates.units(0)[2].tolist()) & set(gates.units(1)[2].tolist())
    assert int(moved["layers.3.weight"].sum()) == ALL_ACTIONS * len(hidden)
    for name, weight in gates.moved(ones, 0, 0, pool).items():
        assert torch.equal(weight, ones[name])
