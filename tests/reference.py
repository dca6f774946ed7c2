"""Slow and obvious references that the tests compare with, in float64."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def log_probabilities(output: Tensor, likelihood: str, label: Tensor) -> Tensor:
    """log p(label | output) of one sample, up to a constant."""
    if likelihood == "categorical":
        picked = output.log_softmax(-1).reshape(-1, output.shape[-1])
        labels = label.reshape(-1)
        return sum((picked[i, int(k)] for i, k in enumerate(labels) if k != -100), torch.zeros(()))
    if likelihood == "gaussian":
        return -0.5 * (label - output).square().sum()
    return -nn.functional.binary_cross_entropy_with_logits(output, label, reduction="sum")


def batch_of_one_fisher(
    model: nn.Module,
    samples: Iterable[tuple[Any, Any]],
    weighted_labels: Callable[[Tensor, Any], Iterable[tuple[float, Tensor]]],
    likelihood: str,
) -> dict[str, Tensor]:
    """1/N Σ_n Σ_y w(y) (∂log p(y|x_n)/∂θ)², one sample and one label at a time."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    for inputs, target in samples:
        count += 1
        output = model(*inputs)
        output = output[0] if isinstance(output, tuple) else output
        for weight, label in weighted_labels(output.detach(), target):
            value = log_probabilities(output, likelihood, label)
            grads = torch.autograd.grad(value, list(parameters.values()), retain_graph=True, allow_unused=True)
            for name, grad in zip(parameters, grads, strict=True):
                if grad is not None:
                    total[name] += weight * (grad.to_dense() if grad.is_sparse else grad) ** 2
    return {name: value / count for name, value in total.items()}
