"""A context that uses a part of the units is a network with the gains of the others at zero."""

import pytest
import torch
from torch import Tensor

from ewc_paper.games.gates import Gates, narrowed
from ewc_paper.games.network import NETWORKS, Architecture, QNetwork

SHAPES = {"minatar": (10, 10, 10), "small": (4, 42, 42)}
ACTIONS = 18
SHARES = [(0.5, 0.0), (0.0, 0.5), (0.7, 0.3)]


def make(name: str, gates: float, filter_gates: float) -> tuple[QNetwork, QNetwork, Gates]:
    whole = QNetwork(NETWORKS[name], SHAPES[name], ACTIONS, seed=0)
    part = QNetwork(narrowed(NETWORKS[name], gates, filter_gates), SHAPES[name], ACTIONS, seed=1)
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
    assert sizes == [[12, 32, ACTIONS]] * 3
    assert not torch.equal(gates.units(0)[1], gates.units(1)[1])
    assert torch.equal(gates.units(0)[2], torch.arange(ACTIONS))
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


def test_numbers_of_one_context_reach_another_on_the_weights_in_common_alone() -> None:
    whole, _, gates = make("small", 0.5, 0.5)
    pool = weights_of(whole)
    ones = {name: torch.ones_like(weight) for name, weight in gates.cut(pool, 0).items()}
    moved = gates.moved(ones, 0, 1, pool)
    for weight in moved.values():
        assert set(weight.unique().tolist()) == {0.0, 1.0}
    hidden = set(gates.units(0)[2].tolist()) & set(gates.units(1)[2].tolist())
    assert int(moved["layers.3.weight"].sum()) == ACTIONS * len(hidden)
    for name, weight in gates.moved(ones, 0, 0, pool).items():
        assert torch.equal(weight, ones[name])
