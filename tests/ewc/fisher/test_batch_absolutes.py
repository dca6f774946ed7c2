"""Absolute gradients are summed over the uses of a weight first, and over samples afterwards."""

import torch
from support.architectures import Custom
from support.reference import assert_equal_fishers, batch_of_one_absolutes
from torch import Tensor, nn

from ewc.fisher.autograd.plan import Plan
from ewc.importances import memory_aware_synapses


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_uses_of_a_tied_weight_may_cancel(plans: list[Plan]) -> None:
    model = Custom(lambda m, x: x @ m.w - (2 * x @ m.w) @ m.w, w=nn.Parameter(normal(3, 3)))
    x = normal(20, 3, seed=1)
    expected = batch_of_one_absolutes(model, (x,))
    assert_equal_fishers(memory_aware_synapses(model, [x]), expected)
    assert list(plans[0].multi_use) == ["w"]


def test_a_bias_and_a_weight_of_the_same_operation_do_not_disturb_each_other() -> None:
    model = nn.Linear(4, 3).double()
    x = normal(30, 4)
    output = model(x).detach()
    found = memory_aware_synapses(model, [x])
    expected = torch.einsum("no,ni->noi", 2 * output, x).abs().mean(0)
    torch.testing.assert_close(found["weight"], expected)
    torch.testing.assert_close(found["bias"], (2 * output).abs().mean(0))
