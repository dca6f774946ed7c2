"""The rule that is read from a node of the graph is the one of the operation that was called."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ewc.fisher.autograd.binders import (
    BINDERS,
    OPERATIONS,
    WeightInput,
    bind,
    is_plain_embedding,
    padding_row,
    supported,
)
from ewc.fisher.autograd.graph import Graph
from ewc.fisher.autograd.layout import SampleLayout

N = 4
FIRST = SampleLayout(0, 1, 1)
IDS = torch.tensor([[1, 2], [0, 1], [2, 2], [3, 0]])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = normal(N, 6)
IMAGES = normal(N, 6, 5)
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
    ("ExpandBackward0", 0): ((1, 6), lambda w: w.expand(N, 6)),
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
    rule = bind(use, N)
    grad = normal(*output.shape, seed=4)
    actual = rule.per_sample(FIRST.by_sample(grad, N), 0, N)
    for n in range(N):
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
        (lambda w: w + X, 0, FIRST, (N, 6)),
        (lambda w: F.layer_norm(X, (6,), w), 1, SampleLayout(1, 1, 1), (6,)),
        (lambda w: F.embedding(IDS, w, scale_grad_by_freq=True), 0, FIRST, (4, 3)),
        (lambda w: F.embedding(IDS, w), 0, SampleLayout(2, 1, 1), (4, 3)),
        (lambda w: F.batch_norm(IMAGES, None, None, w, training=True), 1, FIRST, (6,)),
        (lambda w: torch.tanh(w), 0, FIRST, (N, 6)),
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


def test_integers_become_floating_before_they_are_squared() -> None:
    counts = torch.full((N, 6), 2**20)
    weight = normal(6).requires_grad_()
    output = counts * weight
    rule = bind(WeightInput(output.grad_fn, 1, FIRST, weight.shape), N)
    total = torch.zeros(6, dtype=torch.float64)
    rule.add_squares(total, torch.ones(N, 1, 6, dtype=torch.float64))
    assert total.tolist() == [N * 2.0**40] * 6


@pytest.mark.parametrize(("padding", "row"), [(None, -1), (0, 0), (3, 3), (-1, 3)])
def test_the_padding_row_of_an_embedding(padding: int | None, row: int) -> None:
    layer = nn.Embedding(4, 3, padding_idx=padding)
    output = layer(IDS)
    assert padding_row(output.grad_fn) == row


@pytest.mark.parametrize("options", [{"sparse": True}, {"scale_grad_by_freq": True}, {}])
def test_plain_embeddings_have_gradients_that_are_sums(options: dict[str, bool]) -> None:
    output = nn.Embedding(4, 3, **options)(IDS)
    graph = Graph(output, {})
    assert is_plain_embedding(graph.nodes[0]) == (not options)
