"""Slow and obvious references that the tests compare with, in float64."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

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
    positions of all samples that are not ignored.
    """
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    for n in range(len(inputs[0])):
        output = model(*(x[n : n + 1] for x in inputs))
        target = None if targets is None else targets[n : n + 1]
        labeled = target is not None and likelihood == "categorical"
        count += int((target != -100).sum()) if labeled else output[..., 0].numel()
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
