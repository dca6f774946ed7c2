"""The network has the paper's layers, and the same weights for the same seed."""

import torch
from torch import nn

from ewc_paper.mnist.network import accuracy, is_finite, mlp


def test_layers_and_widths_are_as_asked() -> None:
    linear = [module for module in mlp(3, 8) if isinstance(module, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [
        (784, 8),
        (8, 8),
        (8, 8),
        (8, 10),
    ]


def test_dropout_is_before_every_linear_layer() -> None:
    rates = [module.p for module in mlp(2, 8, dropout=True) if isinstance(module, nn.Dropout)]
    assert rates == [0.2, 0.5, 0.5]


def test_the_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = mlp(1, 8, seed=1), mlp(1, 8, seed=1), mlp(1, 8, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_accuracy_keeps_the_mode_and_leaves_dropout_out() -> None:
    model = mlp(1, 8, dropout=True)
    images, labels = torch.rand(50, 784), torch.randint(10, (50,))
    values = {accuracy(model, images, labels, chunk=7) for _ in range(5)}
    assert len(values) == 1
    assert model.training


def test_one_infinite_weight_is_noticed() -> None:
    model = mlp(1, 8)
    assert is_finite(model)
    model[2].bias.data[3] = torch.inf
    assert not is_finite(model)
