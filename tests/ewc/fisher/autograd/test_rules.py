"""Each rule alone, on plain tensors: its per-sample gradients are those of autograd."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ewc.fisher.autograd import rules
from ewc.fisher.autograd.rules import (
    BroadcastRule,
    ConvolutionOptions,
    ConvolutionRule,
    EmbeddingRule,
    LinearRule,
    Rule,
    SummedRule,
    chunks,
)

N = 5


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(rule: Rule, forward: Callable[[int, Tensor], Tensor], weight: Tensor) -> None:
    """Compare all that a rule can do with the gradients of `forward(sample, weight)`."""
    weight = weight.requires_grad_()
    outputs = [forward(n, weight) for n in range(N)]
    grad = normal(N, *outputs[0].shape, seed=9)
    expected = torch.stack([torch.autograd.grad(outputs[n], weight, grad[n])[0] for n in range(N)])
    weight = weight.detach()
    torch.testing.assert_close(rule.per_sample(grad, 1, 4), expected[1:4])
    buffer = torch.ones_like(expected[1:4])
    rule.add_to(buffer, grad, 1, 4)
    torch.testing.assert_close(buffer, 1 + expected[1:4])
    torch.testing.assert_close(rule.over_batch(grad), expected.sum(0))
    together = SummedRule(rule)
    torch.testing.assert_close(together.per_sample(grad, 0, 1), expected.sum(0, keepdim=True))
    assert together.cost(grad) >= rule.cost(grad)
    total = torch.ones_like(weight)
    rule.add_squares(total, grad.clone())  # it may overwrite the gradients
    torch.testing.assert_close(total, 1 + expected.square().sum(0))
    total, kept = torch.ones_like(weight), grad.clone()
    rule.add_absolutes(total, grad)
    torch.testing.assert_close(total, 1 + expected.abs().sum(0))
    assert torch.equal(grad, kept)
    if rule.separable:
        total = torch.ones_like(weight)
        rule.add_separable(total, grad.square())
        torch.testing.assert_close(total, 1 + expected.square().sum(0))
    assert rule.cost(grad) > 0


@pytest.mark.parametrize("positions", [1, 4])
def test_linear(positions: int) -> None:
    inputs = normal(N, positions, 3)
    rule = LinearRule(inputs)
    assert rule.separable == (positions == 1)
    check(rule, lambda n, w: inputs[n] @ w, normal(3, 2, seed=1))


@pytest.mark.parametrize(
    ("aligned", "separable"), [((1, 4, 3), False), ((1, 1, 3), False), ((2, 4, 3), True)]
)
@pytest.mark.parametrize("scale", [1.0, -2.5])
@pytest.mark.parametrize("has_factor", [True, False])
def test_broadcast(
    aligned: tuple[int, ...], separable: bool, scale: float, has_factor: bool
) -> None:
    factor = normal(N, 2, 4, 3) if has_factor else None
    shape = torch.Size(aligned)
    rule = BroadcastRule(factor, scale, shape, aligned, torch.Size((2, 4, 3)))
    assert rule.separable == separable

    def forward(n: int, w: Tensor) -> Tensor:
        full = (scale * w).expand(2, 4, 3)
        return full if factor is None else full * factor[n]

    check(rule, forward, normal(*aligned, seed=1))


def test_a_broadcast_weight_may_have_fewer_dimensions_than_the_output() -> None:
    rule = BroadcastRule(None, 1.0, torch.Size((3,)), (1, 3, 1), torch.Size((2, 3, 4)))
    check(rule, lambda n, w: w.view(1, 3, 1).expand(2, 3, 4), normal(3, seed=1))


@pytest.mark.parametrize("padding", [-1, 2])
def test_embedding(padding: int) -> None:
    indices = torch.randint(4, (N, 6), generator=torch.Generator().manual_seed(0))
    indices[0] = 2
    rule = EmbeddingRule(indices, 6, padding)
    row = padding if padding >= 0 else None
    check(rule, lambda n, w: F.embedding(indices[n], w, padding_idx=row), normal(6, 3, seed=1))


CALLS = [
    {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    {"stride": 2, "padding": 1, "dilation": 1, "groups": 2},
    {"stride": 1, "padding": 2, "dilation": 2, "groups": 1},
]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_convolution(rank: int, call: dict[str, int], transposed: bool, rows: int) -> None:
    inputs = normal(N, rows, 4, *[7] * rank)
    groups = call["groups"]
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    weight = normal(*channels, *[3] * rank, seed=1)
    options = ConvolutionOptions(
        *((call[name],) * rank for name in ("stride", "padding", "dilation")), groups, transposed
    )
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    rule = ConvolutionRule(inputs, weight.shape, options)
    check(rule, lambda n, w: getattr(F, name)(inputs[n], w, **call), weight)


def test_rules_without_a_separable_form_say_so() -> None:
    rule = EmbeddingRule(torch.zeros(N, 2, dtype=torch.long), 6, -1)
    with pytest.raises(TypeError, match="EmbeddingRule is not separable"):
        rule.add_separable(torch.zeros(6, 3), torch.ones(N, 2, 3))


def test_half_precision_inputs_are_widened() -> None:
    assert LinearRule(normal(N, 1, 3).bfloat16()).inputs.dtype == torch.float32


def test_chunks_cover_all_samples_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "BUDGET", 100)
    assert chunks(10, 30) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert chunks(2, 1000) == [(0, 1), (1, 2)]
    assert chunks(3, 0) == [(0, 3)]


def test_a_factor_whose_square_overflows_adds_nothing_where_there_is_no_gradient() -> None:
    factor, grad = (
        torch.tensor([[2.0, -1e30], [3.0, -1e30]]),
        torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),
    )
    rule = BroadcastRule(factor, 1.0, torch.Size([2]), (2,), torch.Size([2]))
    total = torch.zeros(2)
    rule.add_separable(total, grad.square())
    assert total.tolist() == [13.0, 0.0]
