"""Rules read from the graph give the per-sample gradients of autograd, each on plain tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.fisher import Custom, assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn
from torch.nn import functional as F

import ewc
from ewc.fisher.per_sample import rules
from ewc.fisher.per_sample.binders import (
    BINDERS,
    OPERATIONS,
    WeightInput,
    bind,
    padding_row,
    supported,
)
from ewc.fisher.per_sample.graph import SampleLayout
from ewc.fisher.per_sample.rules import (
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
    total = torch.ones_like(weight)
    rule.add_over_batch(total, grad)
    torch.testing.assert_close(total, 1 + expected.sum(0))
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
        for start in range(N):
            rule.add_separable(total, grad[start : start + 1].square(), start)
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


CALLS: list[dict[str, Any]] = [
    {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1},
    {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 2},
    {"stride": (1, 1), "padding": (2, 2), "dilation": (2, 2), "groups": 1},
    {"stride": (2, 1), "padding": (2, 1), "dilation": (1, 2), "groups": 1},
]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_convolution(rank: int, call: dict[str, Any], transposed: bool, rows: int) -> None:
    call = {name: value if name == "groups" else value[:rank] for name, value in call.items()}
    inputs = normal(N, rows, 4, *[7] * rank)
    groups = call["groups"]
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    weight = normal(*channels, *[3] * rank, seed=1)
    options = ConvolutionOptions(
        *(call[name] for name in ("stride", "padding", "dilation")), groups, transposed
    )
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    rule = ConvolutionRule(inputs, weight.shape, options)
    check(rule, lambda n, w: getattr(F, name)(inputs[n], w, **call), weight)


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


FOUR = 4
FIRST = SampleLayout(0, 1, 1)
IDS = torch.tensor([[1, 2], [0, 1], [2, 2], [3, 0]])


X = normal(FOUR, 6)
IMAGES = normal(FOUR, 6, 5)
MEAN, VARIANCE = normal(6, seed=1), normal(6, seed=2).square() + 0.1

# By operation and slot: the shape of the weight, and the operation as a function of it.
CASES: dict[tuple[str, int], tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    ("AddmmBackward0", 0): ((3,), lambda w: torch.addmm(w, X, normal(6, 3))),
    ("AddmmBackward0", 2): ((6, 3), lambda w: torch.addmm(normal(3), X, w)),
    ("MmBackward0", 1): ((6, 3), lambda w: X @ w),
    ("ConvolutionBackward0", 1): ((2, 6, 3), lambda w: F.conv1d(IMAGES, w, padding=1)),
    ("ConvolutionBackward0", 2): ((2,), lambda w: F.conv1d(IMAGES, normal(2, 6, 3), w)),
    ("EmbeddingBackward0", 0): ((4, 3), lambda w: F.embedding(IDS, w)),
    ("NativeLayerNormBackward0", 1): ((6,), lambda w: F.layer_norm(X, (6,), w, normal(6))),
    ("NativeLayerNormBackward0", 2): ((6,), lambda w: F.layer_norm(X, (6,), normal(6), w)),
    ("NativeGroupNormBackward0", 1): ((6,), lambda w: F.group_norm(IMAGES, 2, w, normal(6))),
    ("NativeGroupNormBackward0", 2): ((6,), lambda w: F.group_norm(IMAGES, 2, normal(6), w)),
    ("NativeBatchNormBackward0", 1): (
        (6,),
        lambda w: F.batch_norm(IMAGES, MEAN, VARIANCE, w, normal(6)),
    ),
    ("NativeBatchNormBackward0", 2): (
        (6,),
        lambda w: F.batch_norm(IMAGES, MEAN, VARIANCE, normal(6), w),
    ),
    ("AddBackward0", 0): ((6,), lambda w: w + X),
    ("AddBackward0", 1): ((6,), lambda w: torch.add(X, w, alpha=3)),
    ("MulBackward0", 0): ((1, 6), lambda w: w * X),
    ("MulBackward0", 1): ((6,), lambda w: X * w),
    ("ExpandBackward0", 0): ((1, 6), lambda w: w.expand(FOUR, 6)),
}  # fmt: skip


@pytest.mark.parametrize("key", BINDERS, ids=str)
def test_every_binder_makes_the_rule_of_its_operation(key: tuple[str, int]) -> None:
    name, slot = key
    shape, forward = CASES[key]
    weight = normal(*shape, seed=3).requires_grad_()
    output = forward(weight)
    assert output.grad_fn.name() == name
    use = WeightInput(output.grad_fn, slot, FIRST, weight.shape)
    assert supported(use)
    rule = bind(use, FOUR)
    grad = normal(*output.shape, seed=4)
    actual = rule.per_sample(FIRST.by_sample(grad, FOUR), 0, FOUR)
    for n in range(FOUR):
        alone = torch.zeros_like(grad)
        alone[n] = grad[n]
        (expected,) = torch.autograd.grad(output, weight, alone, retain_graph=True)
        torch.testing.assert_close(actual[n], expected)


def test_operations_are_those_of_the_binders() -> None:
    assert {name for name, _ in BINDERS} == OPERATIONS


@pytest.mark.parametrize(
    ("forward", "slot", "layout", "shape"),
    [
        (lambda w: torch.addmm(w, X, normal(6, 3), beta=2), 0, FIRST, (3,)),
        (lambda w: torch.addmm(normal(3), X, w, alpha=2), 2, FIRST, (6, 3)),
        (lambda w: X @ w, 1, SampleLayout(1, 1, 1), (6, 3)),
        (lambda w: X @ w, 0, FIRST, (6, 3)),
        (lambda w: w + X, 0, FIRST, (FOUR, 6)),
        (lambda w: F.layer_norm(X, (6,), w), 1, SampleLayout(1, 1, 1), (6,)),
        (lambda w: F.embedding(IDS, w, scale_grad_by_freq=True), 0, FIRST, (4, 3)),
        (lambda w: F.embedding(IDS, w), 0, SampleLayout(2, 1, 1), (4, 3)),
        (lambda w: F.batch_norm(IMAGES, None, None, w, training=True), 1, FIRST, (6,)),
        (lambda w: torch.tanh(w), 0, FIRST, (FOUR, 6)),
    ],
    ids=["beta", "alpha", "columns", "no weight", "own", "normed", "counted", "features", "batch",
         "unknown"],
)  # fmt: skip
def test_calls_for_which_no_rule_is_exact(
    forward: Callable[[Tensor], Tensor], slot: int, layout: SampleLayout, shape: tuple[int, ...]
) -> None:
    weight = normal(*shape, seed=3).requires_grad_()
    output = forward(weight)
    assert not supported(WeightInput(output.grad_fn, slot, layout, weight.shape))


@pytest.mark.parametrize(("padding", "row"), [(None, -1), (0, 0), (3, 3), (-1, 3)])
def test_the_padding_row_of_an_embedding(padding: int | None, row: int) -> None:
    layer = nn.Embedding(4, 3, padding_idx=padding)
    output = layer(IDS)
    assert padding_row(output.grad_fn) == row


def test_a_spatial_dimension_of_one() -> None:
    """PyTorch's backward is wrong there; one dimension less is right."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        h = m.a(x).transpose(1, 2)
        h = m.n(h.unsqueeze(-1)).squeeze(-1) if isinstance(m.n, nn.BatchNorm2d) else m.n(h)
        return m.b(h.transpose(1, 2)).mean(1)

    torch.manual_seed(0)
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 3)}
    right = Custom(forward, n=nn.BatchNorm1d(6), **parts).double()
    right.n(normal(30, 6, 4) * 2 + 1)
    model = Custom(forward, n=nn.BatchNorm2d(6), **parts).double()
    model.load_state_dict(right.state_dict())
    x, y = normal(6, 5, 4), torch.randint(3, (6,))
    expected = batch_of_one_fisher(right.eval(), (x,), y, the_target)
    actual = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    assert_equal_fishers({name: actual[name] for name in expected}, expected)


def test_batch_norm_of_one_sample_with_an_expanded_gradient() -> None:
    """PyTorch's own backward is wrong there, so the reference writes the norm out."""
    norm, written_out = nn.BatchNorm2d(6).double(), nn.BatchNorm2d(6).double()
    norm(3 + 2 * normal(30, 6, 4, 4))
    written_out.load_state_dict(norm.state_dict())

    def affine(m: Custom, x: Tensor) -> Tensor:
        shape = (-1, 1, 1)
        scale = m.norm.weight / (m.norm.running_var + m.norm.eps).sqrt()
        return (x - m.norm.running_mean.view(shape)) * scale.view(shape) + m.norm.bias.view(shape)

    def model(apply: Callable[[Custom, Tensor], Tensor], norm: nn.Module) -> Custom:
        def forward(m: Custom, x: Tensor) -> Tensor:
            rows = apply(m, m.conv(x)).flatten(2).transpose(1, 2)
            return rows.mean(1)

        torch.manual_seed(0)
        return Custom(forward, conv=nn.Conv2d(3, 6, 1), norm=norm).double().eval()

    x, y = normal(5, 3, 4, 4), torch.randint(6, (5,))
    expected = batch_of_one_fisher(model(affine, written_out), (x,), y, the_target)
    plain = model(lambda m, h: m.norm(h), norm)
    for batches in ([(x, y)], [(x[:1], y[:1]), (x[1:], y[1:])]):
        assert_equal_fishers(ewc.fisher_diagonal(plain, batches, kind="empirical"), expected)
