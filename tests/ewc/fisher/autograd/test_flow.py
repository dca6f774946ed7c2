"""Each operation hands the samples on as it is said to: measured, on shapes in which the number of
samples is also that of positions and features.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ewc.fisher.autograd.flow import follow_samples
from ewc.fisher.autograd.graph import Graph
from ewc.fisher.autograd.layout import SampleLayout
from ewc.fisher.autograd.plan import Probe, measure

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
    fitting = measure(Probe(output, graph), {i: [layout] for i, layout in at.items()})
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


def test_nothing_is_followed_by_the_name_of_a_function_of_the_users_own() -> None:
    class Mul(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.flip(0)

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return grad.flip(0)

    x = torch.randn(N, N, dtype=torch.float64, requires_grad=True)
    output = Mul.apply(2 * x)  # its node lives no longer than the output
    found = follow_samples(Graph(output, {}), N)
    assert found == {(0, 0): SampleLayout(0, 1, 1)}
