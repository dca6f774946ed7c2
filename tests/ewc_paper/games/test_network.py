"""The network against its equation, and what contexts share."""

import pytest
import torch
import torch.nn.functional as F

from ewc_paper.games.network import NETWORKS, QNetwork

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
