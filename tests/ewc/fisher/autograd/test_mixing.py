"""Samples that depend on each other are found, and rounding is not taken for it."""

import warnings

import pytest
import torch
from support.architectures import Custom
from support.reference import assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn

import ewc


@pytest.mark.parametrize("mask", [-1e4, -1e9, torch.finfo(torch.float64).min])
def test_mixing_is_seen_beside_a_masked_logit(mask: float) -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        logits = m.a(x)
        return (logits + logits.mean(0)).masked_fill(torch.tensor([True, False, False]), mask)

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 3)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(1, 3, (6,))
    with pytest.warns(ewc.EWCWarning, match="depends on the other samples"):
        actual = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    assert_equal_fishers(actual, batch_of_one_fisher(model, (x,), y, the_target))


def test_float64_outputs_over_float32_insides_do_not_mix() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh())
    model = Custom(lambda m, x: m.b(m.a(x)).double(), a=body, b=nn.Linear(300, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ewc.fisher_diagonal(model, [torch.randn(600, 40)], kind="sampled")


def test_mixing_is_seen_beside_a_large_output() -> None:
    """A logit of -9000, or a regression in other units, does not excuse the others."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        out = m.a(x)
        return torch.cat([out[:, :1] - 9000, out[:, 1:] + 0.2 * out[:, 1:].mean(0)], 1)

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 3))
    with pytest.warns(ewc.EWCWarning, match="depends on the other samples"):
        ewc.fisher_diagonal(model, [torch.randn(6, 4)])


def test_an_output_that_is_zero_up_to_rounding_does_not_mix() -> None:
    def forward(m: Custom, a: Tensor, b: Tensor) -> Tensor:
        return m.h(m.a(a) - m.a(b.flip(-1).flip(-1)))

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(300, 40), h=nn.Linear(40, 3, bias=False))
    a, b = torch.randn(9, 300), torch.randn(9, 300)
    b[-1] = a[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ewc.fisher_diagonal(model, [((a, b),)], kind="sampled")
