"""Models of every architecture, and the slow, obvious Fisher to compare theirs with, in float64."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import ewc

WeightedLabels = Callable[[Tensor, Any], Iterable[tuple[float, Tensor]]]


def log_probability(output: Tensor, likelihood: str, label: Tensor) -> Tensor:
    """log p(label | output) of one sample, up to a constant."""
    if likelihood == "categorical":
        rows = output.log_softmax(-1).reshape(-1, output.shape[-1])
        kept = [rows[i, int(k)] for i, k in enumerate(label.reshape(-1)) if k != -100]
        return torch.stack([*kept, rows.sum() * 0]).sum()
    if likelihood == "gaussian":
        return -0.5 * (label - output).square().sum()
    return -nn.functional.binary_cross_entropy_with_logits(output, label, reduction="sum")


def the_target(output: Tensor, target: Tensor) -> Iterator[tuple[float, Tensor]]:
    """The empirical Fisher: the label in the data, with weight one."""
    yield 1.0, target


def every_class(output: Tensor, target: Any) -> Iterator[tuple[float, Tensor]]:
    """The exact categorical Fisher: each class of each position, weighted by its probability.

    Positions are independent given the input, so that the cross terms of the expectation vanish.
    """
    rows = output.softmax(-1).reshape(-1, output.shape[-1])
    for position in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            label = torch.full((rows.shape[0],), -100)
            label[position] = k
            yield float(rows[position, k]), label


def every_pattern(output: Tensor, target: Any) -> Iterator[tuple[float, Tensor]]:
    """The exact bernoulli Fisher: every pattern of zeros and ones, weighted by its probability."""
    p = output.sigmoid().reshape(-1)
    for pattern in range(2 ** len(p)):
        label = torch.tensor([float(pattern >> i & 1) for i in range(len(p))], dtype=output.dtype)
        yield float((label * p + (1 - label) * (1 - p)).prod()), label.reshape(output.shape)


def two_points(output: Tensor, target: Any) -> Iterator[tuple[float, Tensor]]:
    """The exact gaussian Fisher: y = mean ± √2 e_j twice has the second moments of unit noise."""
    for j in range(output.numel()):
        for sign in (-1.0, 1.0):
            noise = torch.zeros(output.numel(), dtype=output.dtype)
            noise[j] = sign
            yield 0.5, output + noise.reshape(output.shape)


EXACT = {"categorical": every_class, "bernoulli": every_pattern, "gaussian": two_points}


def batch_of_one_fisher(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    targets: Tensor | None,
    weighted_labels: WeightedLabels,
    likelihood: str = "categorical",
) -> dict[str, Tensor]:
    """1/P Σ_n Σ_y w(y) (∂log p(y|x_n)/∂θ)², one sample and one label at a time; P is the number of
    labels of all samples that are not ignored, or of samples where there are no labels.
    """
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    for n in range(len(inputs[0])):
        output = model(*(x[n : n + 1] for x in inputs))
        target = None if targets is None else targets[n : n + 1]
        if likelihood != "categorical":
            count += 1
        else:
            count += output[..., 0].numel() if target is None else int((target != -100).sum())
        for weight, label in weighted_labels(output.detach(), target):
            value = log_probability(output, likelihood, label)
            grads = torch.autograd.grad(
                value, list(parameters.values()), retain_graph=True, allow_unused=True
            )
            for name, grad in zip(parameters, grads, strict=True):
                if grad is not None:
                    total[name] += weight * (grad.to_dense() if grad.is_sparse else grad) ** 2
    return {name: value / count for name, value in total.items()}


def batch_of_one_absolutes(
    model: nn.Module, inputs: tuple[Tensor, ...], counted: Tensor | None = None
) -> dict[str, Tensor]:
    """1/P Σ_n |∂‖f(x_n)‖²/∂θ|, one sample at a time, over the P positions that count."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    for n in range(len(inputs[0])):
        output = model(*(x[n : n + 1] for x in inputs))
        squares = output.square().sum(-1) if output.ndim > 1 else output.square()
        mask = torch.ones_like(squares) if counted is None else counted[n : n + 1].to(squares)
        count += int(mask.sum())
        (mask * squares).sum().backward()
        for name, parameter in parameters.items():
            if (grad := parameter.grad) is not None:
                total[name] += (grad.to_dense() if grad.is_sparse else grad).abs()
        model.zero_grad()
    return {name: value / count for name, value in total.items()}


def assert_equal_fishers(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal names, and equal values to 1e-9 of the largest of the model."""
    assert actual.keys() == expected.keys()
    largest = max(float(f.max()) for f in expected.values())
    for name in expected:
        assert actual[name].shape == expected[name].shape
        error = float((actual[name] - expected[name]).abs().max())
        scale = max(float(expected[name].max()), 1e-6 * largest)
        assert error <= 1e-9 * scale, f"{name}: off by {error / scale:.1e}"


Case = tuple[nn.Module, tuple[Tensor, ...]]


class Custom(nn.Module):
    """A module whose forward is a function of itself and the inputs."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def table(samples: int, *sizes: int) -> tuple[Tensor, ...]:
    return (torch.randn(samples, *sizes),)


def tokens(samples: int, length: int, vocabulary: int) -> tuple[Tensor, ...]:
    return (torch.randint(vocabulary, (samples, length)),)


def pooled(layer: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(
        layer, nn.Tanh(), nn.Flatten(2), nn.AdaptiveAvgPool1d(2), nn.Flatten(),
        nn.Linear(2 * channels, 3),
    )  # fmt: skip


def attention(samples: int, batch_first: bool = True, cross: bool = False, **options: int) -> Case:
    heads = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options)

    def forward(self: Custom, x: Tensor) -> Tensor:
        query = x if batch_first else x.transpose(0, 1)
        key = 2 * query if cross else query
        kdim, vdim = options.get("kdim", 8), options.get("vdim", 8)
        mixed = self.heads(query, key[..., :kdim], key[..., :vdim])[0]
        return self.head((mixed if batch_first else mixed.transpose(0, 1)).mean(1))

    return Custom(forward, heads=heads, head=nn.Linear(8, 3)), table(samples, samples, 8)


def recurrent(kind: type[nn.RNNBase]) -> Callable[[], Case]:
    def case() -> Case:
        layers = kind(6, 4, num_layers=2, bidirectional=True, batch_first=True)
        model = Custom(lambda m, x: m.head(m.rnn(x)[0][:, -1]), rnn=layers, head=nn.Linear(8, 3))
        return model, table(4, 3, 6)

    return case


def gpt() -> Case:
    """Tied embeddings, learnt positions looked up without a batch dimension, pre-norm attention."""

    def forward(m: Custom, ids: Tensor) -> Tensor:
        x = m.words(ids) + m.places(torch.arange(ids.shape[1])[None])
        q, k, v = m.qkv(m.norm(x)).split(8, -1)
        x = x + m.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return F.linear(x, m.words.weight)

    return Custom(
        forward, words=nn.Embedding(11, 8), places=nn.Embedding(6, 8), norm=nn.LayerNorm(8),
        qkv=nn.Linear(8, 24), out=nn.Linear(8, 8),
    ), tokens(4, 5, 11)  # fmt: skip


def unlucky_batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(6)
    norm(3 + 2 * torch.randn(30, 6, 4))
    return norm


def vision_transformer_parts() -> Case:
    def forward(m: Custom, x: Tensor) -> Tensor:
        x = torch.cat([m.token.expand(len(x), -1, -1), x], 1) + m.places
        return m.head(m.gain * x + m.shift)[:, 0]

    return Custom(
        forward,
        token=nn.Parameter(torch.randn(1, 1, 8)), places=nn.Parameter(torch.randn(1, 5, 8)),
        gain=nn.Parameter(torch.randn(8)), shift=nn.Parameter(torch.randn(8)), head=nn.Linear(8, 3),
    ), table(4, 4, 8)  # fmt: skip


def perceptron(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), *layers, nn.Linear(6, 3))


# Every parameter of these has a rule.
FAST: dict[str, Callable[[], Case]] = {
    "linear, in-place relu": lambda: (perceptron(nn.ReLU(inplace=True)), table(5, 8)),
    "linear on sequences": lambda: (perceptron(nn.ReLU(inplace=True)), table(5, 4, 8)),
    "linear on images": lambda: (perceptron(nn.ReLU()), table(3, 2, 4, 8)),
    "linear, samples in the middle": lambda: (
        Custom(
            lambda m, x: m.b(m.a(x.transpose(0, 1)).tanh()).transpose(0, 1),
            a=nn.Linear(8, 6),
            b=nn.Linear(6, 3),
        ),
        table(5, 5, 8),
    ),
    "linear, only the last position counts": lambda: (
        Custom(lambda m, x: m.b(m.a(x).tanh()[:, -1]), a=nn.Linear(8, 6), b=nn.Linear(6, 3)),
        table(5, 4, 8),
    ),
    "linear without bias": lambda: (
        nn.Sequential(nn.Linear(8, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False)),
        table(5, 8),
    ),
    "a weight given to F.linear and addmm": lambda: (
        Custom(
            lambda m, x: torch.addmm(m.b, F.linear(x, m.w).tanh(), m.v),
            w=nn.Parameter(torch.randn(6, 8)),
            v=nn.Parameter(torch.randn(6, 3)),
            b=nn.Parameter(torch.randn(3)),
        ),
        table(5, 8),
    ),
    "a module called twice": lambda: (
        Custom(lambda m, x: m.b(m.a(m.a(x).tanh())), a=nn.Linear(8, 8), b=nn.Linear(8, 3)),
        table(5, 8),
    ),
    "embedding": lambda: (nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 3)), tokens(5, 6, 7)),
    "embedding with padding": lambda: (
        nn.Sequential(nn.Embedding(5, 8, padding_idx=2), nn.Linear(8, 3)),
        tokens(5, 6, 5),
    ),
    "tied embeddings, positions": gpt,
    "layer norm": lambda: (perceptron(nn.LayerNorm(6)), table(5, 4, 8)),
    "layer norm over two dimensions": lambda: (
        nn.Sequential(nn.LayerNorm((4, 8)), nn.Flatten(), nn.Linear(32, 3)),
        table(5, 4, 8),
    ),
    "rms norm": lambda: (perceptron(nn.RMSNorm(6)), table(5, 4, 8)),
    "group norm": lambda: (
        nn.Sequential(nn.Conv1d(4, 6, 3), nn.GroupNorm(3, 6), nn.Flatten(), nn.Linear(36, 3)),
        table(4, 4, 8),
    ),
    "batch norm": lambda: (
        nn.Sequential(nn.Conv1d(4, 6, 3), unlucky_batch_norm(), nn.Flatten(), nn.Linear(36, 3)),
        table(4, 4, 8),
    ),
    "batch norm of a table": lambda: (perceptron(nn.BatchNorm1d(6)), table(5, 8)),
    "attention": lambda: attention(5),
    "attention, samples in the middle": lambda: attention(5, batch_first=False),
    "cross attention": lambda: attention(4, cross=True),
    "attention with other widths": lambda: attention(4, kdim=4, vdim=6),
    "transformer encoder": lambda: (
        nn.Sequential(
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
                2,
                enable_nested_tensor=False,
            ),
            nn.Linear(8, 3),
        ),
        table(4, 3, 8),
    ),
    "rnn": recurrent(nn.RNN),
    "lstm": recurrent(nn.LSTM),
    "gru": recurrent(nn.GRU),
    "lstm cell, twice": lambda: (
        Custom(lambda m, x: m.b(m.a(x, m.a(x))[0]), a=nn.LSTMCell(8, 6), b=nn.Linear(6, 3)),
        table(5, 8),
    ),
    "bare parameters of a vision transformer": vision_transformer_parts,
    "samples folded into time": lambda: (
        Custom(
            lambda m, x: m.b(m.a(x.flatten(0, 1)).flatten(1)).unflatten(0, (len(x), -1)).mean(1),
            a=nn.Conv1d(2, 3, 3),
            b=nn.Linear(12, 3),
        ),
        table(4, 3, 2, 6),
    ),
    "two inputs": lambda: (
        Custom(lambda m, x, y: m.a(x).tanh() + m.b(y), a=nn.Linear(8, 3), b=nn.Linear(4, 3)),
        (torch.randn(5, 8), torch.randn(5, 4)),
    ),
    "an unused parameter": lambda: (
        Custom(lambda m, x: m.a(x), a=nn.Linear(8, 3), b=nn.Linear(8, 3)),
        table(5, 8),
    ),
}

# Some parameters of these (named) go one sample at a time.
GENERAL: dict[str, tuple[Callable[[], Case], set[str]]] = {
    "weight norm": (
        lambda: (
            nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 6)), nn.Linear(6, 3)),
            table(5, 8),
        ),
        {"0.parametrizations.weight.original0", "0.parametrizations.weight.original1"},
    ),
    "spectral norm": (
        lambda: (
            nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 6)), nn.Linear(6, 3)),
            table(5, 8),
        ),
        {"0.parametrizations.weight.original"},
    ),
    "bilinear": (
        lambda: (
            Custom(lambda m, x, y: m.b(m.a(x, y)), a=nn.Bilinear(8, 4, 6), b=nn.Linear(6, 3)),
            (torch.randn(5, 8), torch.randn(5, 4)),
        ),
        {"a.weight"},
    ),
    "prelu": (lambda: (perceptron(nn.PReLU(6)), table(5, 8)), {"1.weight"}),
    "embedding bag": (
        lambda: (nn.Sequential(nn.EmbeddingBag(7, 8), nn.Linear(8, 3)), tokens(5, 4, 7)),
        {"0.weight"},
    ),
    "embedding scaled by frequency": (
        lambda: (
            nn.Sequential(
                nn.Embedding(4, 8, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(40, 3)
            ),
            tokens(5, 5, 4),
        ),
        {"0.weight"},
    ),
    "shared lookup scaled by frequency": (
        lambda: (
            Custom(
                lambda m, x: m.b(x + m.a(torch.tensor([[0, 0, 1, 1]]))),
                a=nn.Embedding(3, 8, scale_grad_by_freq=True),
                b=nn.Linear(8, 3),
            ),
            table(5, 4, 8),
        ),
        {"a.weight"},
    ),
    "sparse embedding": (
        lambda: (
            nn.Sequential(nn.Embedding(7, 8, sparse=True), nn.Flatten(), nn.Linear(40, 3)),
            tokens(5, 5, 7),
        ),
        {"0.weight"},
    ),
    "attention with a bias for keys": (
        lambda: attention(4, add_bias_kv=True),
        {"heads.bias_k", "heads.bias_v"},
    ),
    "a weight copied in another order": (
        lambda: (
            Custom(
                lambda m, x: F.linear(x + m.p.t().reshape(-1), m.w.t().reshape(3, 8)),
                p=nn.Parameter(torch.randn(2, 4)),
                w=nn.Parameter(torch.randn(4, 6)),
            ),
            table(5, 8),
        ),
        {"p", "w"},
    ),
    "a bare parameter scaled before use": (
        lambda: (
            Custom(lambda m, x: m.a(x + 2 * m.p), a=nn.Linear(8, 3), p=nn.Parameter(torch.ones(8))),
            table(5, 8),
        ),
        {"p"},
    ),
}

CONVOLUTIONS = [
    {"padding": 1, "groups": 2, "dilation": 2},
    {"stride": 2, "bias": False},
    {"padding": "same", "padding_mode": "reflect"},
    {"padding": 2, "padding_mode": "circular", "stride": 2},
    {"padding": "same", "dilation": 3, "padding_mode": "replicate"},
]
TRANSPOSED = [
    {"padding": 1, "groups": 2, "dilation": 2},
    {"stride": 2, "output_padding": 1},
    {"dilation": 3, "stride": 2, "output_padding": 2},
]


def in_float64(make: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    model, inputs = make()
    return model.double().eval(), tuple(x.double() if x.is_floating_point() else x for x in inputs)


def check_against_loop(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Empirical and exact, in one batch and in batches of two sizes."""
    with torch.no_grad():
        output = model(*inputs)
    targets = torch.randint(output.shape[-1], output.shape[:-1])
    expected = batch_of_one_fisher(model, inputs, targets, the_target)
    assert_equal_fishers(
        ewc.fisher_diagonal(model, [(inputs, targets)], kind="empirical"), expected
    )
    split = [(tuple(x[a:b] for x in inputs), targets[a:b]) for a, b in ((0, 2), (2, 3), (3, 99))]
    split = [batch for batch in split if len(batch[1])]
    assert_equal_fishers(ewc.fisher_diagonal(model, split, kind="empirical"), expected)
    expected = batch_of_one_fisher(model, inputs, None, EXACT["categorical"])
    assert_equal_fishers(ewc.fisher_diagonal(model, [(inputs,)]), expected)
