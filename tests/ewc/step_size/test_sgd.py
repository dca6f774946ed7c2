"""From where on an explicit pull diverges."""

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from ewc.step_size.sgd import stability_limit


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.5, "dampening": 0.3},
        {"momentum": 0.9, "nesterov": True},
    ],
)
def test_the_explicit_pull_of_sgd_diverges_beyond_the_limit_and_not_below(options) -> None:
    """One weight at 1, held at 0 with precision 1, and no loss at all."""
    for factor, diverges in ((0.97, False), (1.03, True)):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = SGD([weight], lr=1.0, **options)
        optimizer.param_groups[0]["lr"] = factor * stability_limit(
            optimizer, optimizer.param_groups[0]
        )
        weight.data.fill_(1.0)
        for _ in range(2000):
            weight.grad = weight.detach().clone()
            optimizer.step()
        assert (not abs(weight.item()) < 1) == diverges


def test_no_limit_is_known_for_optimizers_that_divide_by_the_gradient() -> None:
    optimizer = Adam([nn.Parameter(torch.zeros(1))])
    assert stability_limit(optimizer, optimizer.param_groups[0]) == math.inf
