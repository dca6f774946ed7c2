"""The graph of an output, where operations hand the samples on, and what looks across them."""

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ewc.fisher.per_sample.flow import follow_samples
from ewc.fisher.per_sample.graph import (
    Graph,
)
from ewc.fisher.per_sample.plan import Probe, measure
from ewc.fisher.per_sample.watch import InputWritten, Look, Watch, are_within, samples_to_compare


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_results_are_known_to_be_nested() -> None:
    layer = nn.Linear(3, 2)
    nested = torch.nested.as_nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    output = torch.stack([row.sum(0) for row in layer(nested).unbind()])
    graph = Graph(output, {id(layer.weight): "w"})
    assert graph.nested
    assert graph.elements == sys.maxsize


def test_rounding_and_range_are_those_of_the_narrowest_types() -> None:
    w = nn.Parameter(torch.randn(3, 3))
    output = (torch.randn(5, 3) @ w).bfloat16().double()
    graph = Graph(output, {id(w): "w"})
    assert graph.rounding == torch.finfo(torch.bfloat16).eps
    assert graph.largest_number == torch.finfo(torch.bfloat16).max


N = 4
Case = Callable[[Tensor], Tensor]
CONSTANT = torch.randn(N, N, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def weight(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


# Each takes (samples, N, N) and returns something with the samples first.
FOLLOWED: dict[str, list[Case]] = {
    "Abs": [lambda x: x.abs()],
    "Add": [lambda x: x + CONSTANT, lambda x: x + x[:, :1], lambda x: 1 + x],
    "Addmm": [lambda x: torch.addmm(weight(3), x[:, 0], weight(N, 3))],
    "Amax": [lambda x: x.amax(1), lambda x: x.transpose(0, 1).amax(0, keepdim=True)[0]],
    "AvgPool2D": [lambda x: F.avg_pool2d(x.unsqueeze(1), 2)],
    "Baddbmm": [lambda x: torch.baddbmm(x, x, x.transpose(1, 2))],
    "Bmm": [lambda x: x @ x, lambda x: (x.transpose(0, 1) @ weight(N, N, 3)).transpose(0, 1)],
    "Cat": [
        lambda x: torch.cat([x, x], -1),
        lambda x: torch.cat([x, x.tanh()]).tanh()[N:],
        lambda x: torch.cat([x, CONSTANT], 1),
    ],
    "Clamp": [lambda x: x.clamp(-1, 1)],
    "Clone": [lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)],
    "ConstantPadNd": [lambda x: F.pad(x, (1, 2)), lambda x: F.pad(x, (1, 0, 2, -1))],
    "Convolution": [
        lambda x: F.conv1d(x, weight(2, N, 3)),
        lambda x: F.conv_transpose1d(x, weight(N, 2, 3)),
    ],
    "Cumsum": [lambda x: x.cumsum(1), lambda x: x.transpose(0, 1).cumsum(-1).transpose(0, 1)],
    "Div": [lambda x: x / 3, lambda x: x / (2 + x.square())],
    "Exp": [lambda x: x.exp()],
    "Expand": [lambda x: x.sum(1, keepdim=True).expand(-1, 3, -1)],
    "Flip": [lambda x: x.flip(1, 2)],
    "Gelu": [lambda x: F.gelu(x)],
    "Glu": [lambda x: F.glu(x, 1)],
    "Im2Col": [lambda x: F.unfold(x.unsqueeze(1), 2)],
    "LinalgVectorNorm": [lambda x: F.normalize(x, dim=-1)],
    "LogSoftmax": [lambda x: x.log_softmax(1)],
    "Logsumexp": [lambda x: x.logsumexp(-1)],
    "MaskedFill": [lambda x: x.masked_fill(CONSTANT > 0, 0.0)],
    "Max": [lambda x: x.max(1).values, lambda x: x.transpose(0, 1).max(0).values],
    "MaxPool2DWithIndices": [lambda x: F.max_pool2d(x.unsqueeze(1), 2)],
    "Mean": [lambda x: x.mean(1), lambda x: x.transpose(0, 2).mean((0, 1))],
    "Mm": [
        lambda x: x[:, 0] @ weight(N, 3),
        lambda x: (weight(3, N) @ x[:, 0].t()).t(),
        lambda x: (x.flatten(0, 1) @ weight(N, 3)).unflatten(0, (N, N)),
    ],
    "Mul": [lambda x: x * CONSTANT, lambda x: x * x.mean(1, keepdim=True)],
    "Mv": [lambda x: x[:, 0] @ weight(N)],
    "NativeBatchNorm": [lambda x: F.batch_norm(x, torch.zeros(N).double(), torch.ones(N).double())],
    "NativeGroupNorm": [lambda x: F.group_norm(x, 2)],
    "NativeLayerNorm": [
        lambda x: F.layer_norm(x, (N,)),
        lambda x: F.layer_norm(x, (N, N)),
        lambda x: F.layer_norm(x.transpose(0, 1), (N,)).transpose(0, 1),
    ],
    "Neg": [lambda x: -x],
    "Permute": [lambda x: x.permute(2, 0, 1).tanh().permute(1, 2, 0)],
    "Pow": [lambda x: x**2, lambda x: 2**x],
    "Prod": [lambda x: x.prod(1)],
    "ReflectionPad1D": [lambda x: F.pad(x, (1, 1), mode="reflect")],
    "Relu": [lambda x: x.relu()],
    "Roll": [lambda x: x.roll(1, 1)],
    "ScaledDotProductFlashAttentionForCpu": [
        lambda x: F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3),
        lambda x: F.scaled_dot_product_attention(*[x.unsqueeze(0)] * 3)[0],
    ],
    "Select": [lambda x: x[:, 1], lambda x: x.transpose(0, 2)[-1].transpose(0, 1)],
    "Slice": [lambda x: x[:, 1:3], lambda x: x[..., -2:], lambda x: x[:, ::2]],
    "Softmax": [lambda x: x.softmax(1), lambda x: x.softmax(-1)],
    "Split": [lambda x: x.split(3, 1)[1], lambda x: torch.cat([x, 2 * x]).split(N)[1]],
    "SplitWithSizes": [lambda x: x.split([1, 3], 2)[1]],
    "Squeeze": [lambda x: x.sum(1, keepdim=True).squeeze(1)],
    "Stack": [lambda x: torch.stack([x, x], 1), lambda x: torch.stack([x, x]).tanh()[1]],
    "Std": [lambda x: x.std(1)],
    "Rsub": [lambda x: 1 - x],
    "Sub": [lambda x: x - CONSTANT],
    "Sum": [lambda x: x.sum((1, 2)), lambda x: x.transpose(0, 1).sum(0), lambda x: x.sum(-1, True)],
    "T": [lambda x: (x[:, 0].t() * 2).t()],
    "Tanh": [lambda x: x.tanh()],
    "Transpose": [lambda x: x.transpose(0, 1).tanh().transpose(1, 0)],
    "Unbind": [lambda x: x.unbind(1)[2], lambda x: x.unbind(-1)[0]],
    "Unsqueeze": [lambda x: x.unsqueeze(0).tanh()[0]],
    "UnsafeView": [lambda x: x @ weight(N, 3)],
    "UpsampleNearest2D": [lambda x: F.interpolate(x.unsqueeze(1), scale_factor=2)],
    "Var": [lambda x: x.var(-1)],
    "View": [
        lambda x: x.flatten(1),
        lambda x: x.flatten(0, 1).tanh().view(N, N, N),
        lambda x: x.transpose(0, 1).flatten(0, 1).tanh().view(N, N, N).transpose(0, 1),
    ],
    "Where": [lambda x: torch.where(CONSTANT > 0, x, 2 * x)],
}  # fmt: skip
CASES = [(name, n) for name, cases in FOLLOWED.items() for n in range(len(cases))]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_samples_are_where_the_flow_says(name: str, number: int) -> None:
    """The input of the operation is a linear layer, whose rows are measured."""
    x = torch.randn(N, N, N, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    layer = nn.Linear(N, N).double()
    output = FOLLOWED[name][number](layer(x) if number % 2 == 0 else layer(x) * 1.5)
    graph = Graph(output, {})
    assert name in {graph.operation(i) for i in range(len(graph.nodes))}
    found = follow_samples(graph, N)
    at = {i: found[i, 0] for i in range(len(graph.nodes)) if (i, 0) in found}
    (product,) = [i for i, node in enumerate(graph.nodes) if node.name() == "AddmmBackward0"][-1:]
    assert product in at
    fitting = measure(Probe(output, graph), {i: [layout] for i, layout in at.items()}).fitting
    assert all(fitting[i] for i in at)


COMBINED: dict[str, Case] = {
    "a sum over the samples": lambda x: x + x.sum(0),
    "a softmax over the samples": lambda x: x.softmax(0),
    "a norm over the samples": lambda x: F.layer_norm(x.transpose(0, 2), (N,)).transpose(0, 2),
    "samples rolled": lambda x: x.roll(1, 0),
    "samples turned round": lambda x: x.flip(0),
    "samples shifted by padding": lambda x: F.pad(x, (0, 0, 0, 0, 1, -1)),
    "samples pooled by a matrix": lambda x: CONSTANT[0] @ x.flatten(1),
    "samples picked by an index": lambda x: x[torch.arange(N)],
    "every other sample": lambda x: torch.cat([x, x])[::2],
    "half of the samples from one place": lambda x: torch.cat([x[: N // 2], x[: N // 2]]),
    "samples in the rows of a product": lambda x: (x.transpose(0, 1) @ x.transpose(0, 1)).transpose(
        0, 1
    ),
    "samples attending to each other": lambda x: F.scaled_dot_product_attention(
        *[x.permute(1, 0, 2).unsqueeze(0)] * 3
    )[0].transpose(0, 1),
    "statistics of the batch": lambda x: F.batch_norm(x, None, None, training=True),
    "samples as channels": lambda x: F.conv1d(x.transpose(0, 1), weight(N, N, 1)).transpose(0, 1),
}


@pytest.mark.parametrize("name", COMBINED)
def test_samples_that_are_combined_are_not_followed(name: str) -> None:
    layer = nn.Linear(N, N).double()
    output = COMBINED[name](layer(torch.randn(N, N, N, dtype=torch.float64)))
    graph = Graph(output, {})
    found = follow_samples(graph, N)
    products = [i for i, node in enumerate(graph.nodes) if node.name() == "AddmmBackward0"]
    assert not any((i, 0) in found for i in products)


def test_what_stays_within_samples_does_so_in_batches_with_the_same_outlines() -> None:
    def looks(run: Callable[[Tensor], object], x: Tensor) -> list[Look]:
        with Watch() as watch:
            run(x)
        return watch.looks

    def run(x: Tensor) -> Tensor:
        return F.linear(x, torch.ones(2, 5)).softmax(-1)

    first, second = looks(run, X), looks(run, X + 1)
    assert are_within(first, looks(run, X[-1:]))
    assert [one.outline for one in first] == [one.outline for one in second]
    assert not are_within(looks(torch.flipud, X), looks(torch.flipud, X[-1:]))

    def reading(x: Tensor) -> Tensor:
        return x.amax((1, 2)) if x[:0].sum().item() == 0 else x

    assert not are_within(looks(reading, X), looks(reading, X[-1:]))


def compared(run: Callable[[Tensor], object], x: Tensor) -> list[int]:
    with Watch() as together:
        run(x)
    last = x[-1:]
    with Watch() as alone:
        run(last)
    return list(samples_to_compare(together.looks, alone.looks, len(x)))


X = torch.randn(4, 3, 5)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.softmax(-1).topk(2).values.sum((1, 2)),
        lambda x: x.flatten(0, 1).sort(-1),
        lambda x: x.cumsum(1).amax((1, 2)),
        lambda x: torch.maximum(x, x.flip(1)).flatten(1).median(1),
        lambda x: x[x[..., 0] > 0] * 2,
        lambda x: [x[:, t].tanh() for t in range(3)],
        lambda x: x.flatten(0, 1).index_add(0, torch.arange(len(x) * 3), x.flatten(0, 1).tanh()),
        lambda x: torch.zeros(4).tolist(),
        lambda x: F.linear(x, torch.ones(2, 5)),
        lambda x: torch.einsum("bij,bkj->bik", x, x),
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: F.conv1d(F.avg_pool1d(x, 3, 1, 1), torch.ones(2, 3, 3)),
        lambda x: x.flip(1).roll(1, 2).unfold(1, 2, 1),
        lambda x: x[torch.arange(len(x)), :, torch.full((len(x),), 2)],
        lambda x: x.index_select(1, torch.tensor([2, 0])),
        lambda x: x.gather(2, (x[..., :2] > 0).long()),
        lambda x: torch.ones(9, 2)[(x[..., 0] > 0).long()],
    ],
)
def test_operations_within_samples_need_no_comparison(run: Callable[[Tensor], object]) -> None:
    assert compared(run, X) == []


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.amax(0),
        lambda x: x.max(),
        lambda x: x.transpose(0, 1).max(1),
        lambda x: x.sort(0),
        lambda x: x.flatten().argsort(),
        lambda x: x[:, 0].t().topk(1),
        lambda x: x.flatten(0, 1).cumsum(0),
        lambda x: torch.bincount((x[:, 0, 0] > 0).long()),
        lambda x: x.mean(0),
        lambda x: (x[:, 0, 0] > 9).nonzero().flatten()[:0] if len(x) > 1 else x.nonzero(),
        lambda x: x[0, 0, 0].item(),
        lambda x: torch.zeros(2, 5).index_add(0, torch.zeros(len(x)).long(), x[:, 0]),
        lambda x: torch.zeros(9).scatter(0, torch.arange(len(x)), x[:, 0, 0]),
        lambda x: [row.max() for row in x],
        lambda x: x[:, 0, 0].tolist(),
        lambda x: x[:, 0, 0].numpy(),
        lambda x: torch.mm(torch.ones(len(x), len(x)), x[:, 0]),
        lambda x: torch.einsum("bi,ci->bc", x[:, 0], x[:, 0]) @ x[:, 0],
        lambda x: F.scaled_dot_product_attention(x[:, 0][None], x[:, 0][None], x[:, 0][None]),
        lambda x: F.conv1d(x[:, :, 0].t()[None], torch.ones(2, 3, 3), padding=1),
        lambda x: F.max_pool1d(x[:, 0].t()[None], 3, 1, 1),
        lambda x: x.roll(1, 0),
        lambda x: x.flip(0),
        lambda x: torch.cat([x[:1], x[:-1]]),
        lambda x: F.pad(x[:, 0, 0], (1, 0)).unfold(0, 2, 1),
        lambda x: x[torch.arange(len(x)).flip(0)],
        lambda x: x.index_select(0, torch.zeros(len(x)).long()),
        lambda x: x.gather(0, torch.zeros(len(x), 3, 5).long()),
        lambda x: F.embedding(torch.zeros(len(x)).long(), x[:, 0]),
        lambda x: x.index_put((torch.zeros(len(x)).long(),), x),
        lambda x: x.masked_scatter(x > 0, x.tanh()),
    ],
)
def test_operations_across_samples_need_a_comparison_of_all(
    run: Callable[[Tensor], object],
) -> None:
    assert compared(run, X) == [0, 1, 2, 3]


def test_only_samples_with_another_result_of_their_own_are_compared() -> None:
    lengths = torch.tensor([3, 5, 2, 5])
    mask = torch.arange(5) < lengths.unsqueeze(1)
    assert compared(lambda x: x.max(), lengths) == [0, 2]
    assert compared(lambda x: x.min(), lengths) == [0, 1, 3]
    assert compared(lambda x: bool(x.all()), mask) == [1, 3]
    assert compared(lambda x: bool((~x).any()), mask) == [1, 3]
    assert compared(lambda x: bool(x.any()), mask) == []
    assert compared(lambda x: x.all(0), mask) == [0, 1, 3]
    assert compared(lambda x: bool(x.t().all()), mask) == [1, 3]
    assert compared(lambda x: x.amax(0), mask.long()) == [0, 2]


def test_values_that_are_overwritten_later_are_not_trusted() -> None:
    def run(mask: Tensor) -> None:
        mask = mask.clone()
        mask.all()
        mask.fill_(True)

    mask = torch.tensor([[True, True], [False, True]])
    assert compared(run, mask) == [0, 1]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.div_(2),
        lambda x: x[0].zero_(),
        lambda x: x.view(-1).data.add_(1),
        lambda x: torch.add(x, 1, out=x),
        lambda x: torch._foreach_add_([x], 1.0),
        lambda x: x.unsqueeze(0).index_fill_(1, torch.tensor([0]), 3.0),
        lambda x: x.numpy().fill(2),
        lambda x: np.asarray(x[1:]).fill(2),
        lambda x: np.from_dlpack(x).fill(2),
    ],
)
def test_a_write_to_a_protected_tensor_is_stopped_before_it_happens(
    write: Callable[[Tensor], object],
) -> None:
    x, y = torch.ones(3, 2), torch.ones(3, 2)
    with Watch([y]):
        write(x)
    assert not torch.equal(x, torch.ones(3, 2))
    with pytest.raises(InputWritten), Watch([y]):
        write(y)
    assert torch.equal(y, torch.ones(3, 2))
