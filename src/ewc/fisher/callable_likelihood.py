"""A likelihood that the user gives as a function of outputs and targets."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ewc.fisher.autograd.graph import Graph

LogLikelihood = Callable[[Any, Any], Tensor]


def take_values(values: Tensor, targets: None) -> Tensor:
    """Return the outputs of a model that computes log-likelihoods itself."""
    return values


def callable_cotangent(
    log_likelihood: LogLikelihood, out: Tensor, targets: Tensor | None, where: str
) -> Tensor:
    """Return ∂/∂output of the sum over samples of `log_likelihood(output, targets)`.

    Args:
        log_likelihood: returns one value per sample.
        out: the detached outputs for a batch.
        targets: the targets of the batch.
        where: the name of the batch in error messages.
    """
    cotangent = _gradient(log_likelihood, out, targets, where)
    _check_samples_are_separate(log_likelihood, out, targets, cotangent)
    return cotangent


def _gradient(
    log_likelihood: LogLikelihood, out: Tensor, targets: Tensor | None, where: str
) -> Tensor:
    with torch.enable_grad():
        out = out.requires_grad_()
        value = log_likelihood(out, targets)
    if not isinstance(value, Tensor) or value.shape != out.shape[:1]:
        came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            "a callable likelihood must return one value per sample, shape "
            f"{tuple(out.shape[:1])}; for {where} it returned {came}"
        )
    _refuse_parameters_within(value, out)
    (cotangent,) = torch.autograd.grad(value, out, torch.ones_like(value))
    return cotangent


def _check_samples_are_separate(
    log_likelihood: LogLikelihood, out: Tensor, targets: Tensor | None, cotangent: Tensor
) -> None:
    """Raise if the likelihood of a sample depends on the others, or on how many there are."""
    last = slice(len(out) - 1, None)
    alone = _gradient(
        log_likelihood, out[last].detach(), None if targets is None else targets[last], "a sample"
    )
    size = cotangent[last].abs().max()
    if bool((alone - cotangent[last]).abs().max() > torch.finfo(out.dtype).eps ** 0.5 * size):
        raise ValueError(
            "a callable likelihood must treat samples separately, but its gradient for a sample "
            "changes when the others are left out: sum over outputs and positions, and neither "
            "sum nor average over samples"
        )


def _refuse_parameters_within(value: Tensor, out: Tensor) -> None:
    for node in Graph(value, {}).nodes:
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf is not out:
            raise ValueError(
                "a callable likelihood must depend on its arguments only, but this one uses a "
                f"parameter of shape {tuple(leaf.shape)}: return what it needs from the model"
            )
