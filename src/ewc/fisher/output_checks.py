"""Outputs and targets that contradict the likelihood, found before they give a wrong number.

A Fisher can be computed for any output, even for probabilities that are taken for logits, or for
the width of an image that is taken for its classes. Targets show what the output means, also for
kinds of Fisher that do not need them.
"""

from typing import Literal

import torch
from torch import Tensor

from ewc.fisher.autograd.graph import VIEWS, operation
from ewc.warnings import warn

Kind = Literal["exact", "sampled", "empirical"]
LikelihoodName = Literal["categorical", "gaussian", "bernoulli"]

IGNORE = -100  # the label of a position that does not count


def check_agreement(
    output: Tensor, targets: Tensor | None, kind: Kind, likelihood: LikelihoodName, where: str
) -> Tensor | None:
    """Raise if the outputs or targets do not fit the likelihood, and say what may be meant.

    Args:
        output: what the model returned for a batch, samples first.
        targets: the targets of the batch, if there are any.
        kind: which Fisher is computed.
        likelihood: what the outputs mean.
        where: the name of the batch in error messages.

    Returns:
        The targets, with labels as int64.
    """
    if targets is not None and not targets.is_floating_point() and not targets.is_complex():
        targets = targets.long()
    if likelihood == "categorical":
        _check_logits(output, targets, where)
        if targets is not None:
            _check_classes(output, targets, kind, where)
        return targets
    if likelihood == "bernoulli" and _last_operation(output) in ("Sigmoid", "Softmax"):
        raise ValueError(
            "likelihood='bernoulli' needs logits, but the model ends in a "
            f"{_last_operation(output).lower()}: return its input"
        )
    if targets is not None:
        _check_values(output.detach(), targets, kind, likelihood, where)
    return targets


def _check_logits(output: Tensor, targets: Tensor | None, where: str) -> None:
    shape = tuple(output.shape)
    if output.ndim < 2 or shape[-1] < 2:
        raise ValueError(
            f"likelihood='categorical' needs outputs (batch, ..., classes) with 2 classes or more; "
            f"{where} gave {shape}: use 'bernoulli' or 'gaussian' for single outputs"
        )
    if _last_operation(output) == "Softmax" or (
        _are_probabilities(output[:2]) and _are_probabilities(output)
    ):
        raise ValueError(
            "likelihood='categorical' needs logits, but the outputs are probabilities (for "
            f"{where} they add up to 1): leave the softmax out, or return the logarithm"
        )
    if output.ndim > 3 and targets is None:
        warn(
            f"the outputs have shape {shape}, and the last dimension is taken for {shape[-1]} "
            "classes; if the classes are in dimension 1, return outputs.movedim(1, -1)"
        )


def _check_classes(output: Tensor, targets: Tensor, kind: Kind, where: str) -> None:
    """Check categorical targets: class numbers, or probabilities where no label is needed."""
    came = f"{where} has {targets.dtype} {tuple(targets.shape)}"
    expected = (
        f"categorical targets must be integer labels of shape {tuple(output.shape[:-1])} "
        f"(classes are the last dimension of the outputs); {came}"
    )
    integer = not targets.is_floating_point()
    if integer and targets.shape == output.shape[:-1]:
        if kind == "empirical":
            _check_range(targets, output.shape[-1], where)
    elif integer and targets.shape == output.shape[:1] + output.shape[2:]:
        raise ValueError(
            f"{expected}. They fit classes in dimension 1: return outputs.movedim(1, -1)"
        )
    elif targets.shape == output.shape and _are_probabilities(targets):
        if kind == "empirical":
            raise ValueError(f"{expected}. For one-hot labels take targets.argmax(-1)")
    elif targets.shape == output.shape and bool(((targets >= 0) & (targets <= 1)).all()):
        raise ValueError(f"{expected}. For several labels per sample use likelihood='bernoulli'")
    elif not integer:
        raise ValueError(f"{expected}. For regression use likelihood='gaussian'")
    else:
        raise ValueError(
            f"{expected}. If they are not labels of these outputs, yield only the inputs"
        )


def _check_range(labels: Tensor, classes: int, where: str) -> None:
    smallest, largest = labels.aminmax()
    if 0 <= int(smallest) <= int(largest) < classes:
        return
    bad = ((labels < 0) & (labels != IGNORE)) | (labels >= classes)
    if bool(bad.any()):
        raise ValueError(
            f"labels must be 0 to {classes - 1} (or {IGNORE}, ignored); "
            f"{where} has {int(labels[bad][0])}"
        )


def _check_values(
    out: Tensor, targets: Tensor, kind: Kind, likelihood: LikelihoodName, where: str
) -> None:
    """Check gaussian or bernoulli targets: one value per output."""
    if targets.shape != out.shape:
        if kind != "empirical" and targets.numel() == out.numel():
            return  # (batch,) for (batch, 1)
        classes = not targets.is_floating_point() and targets.shape == out.shape[:-1]
        advice = ". For class labels use likelihood='categorical'" if classes else ""
        raise ValueError(
            f"{likelihood} targets must have the outputs' shape {tuple(out.shape)}; "
            f"{where} has {tuple(targets.shape)}{advice}"
        )
    if not bool(targets.isfinite().all()):
        raise ValueError(f"targets must be finite; {where} has NaN or infinite ones")
    if likelihood == "bernoulli" and bool(((targets < 0) | (targets > 1)).any()):
        raise ValueError(
            f"bernoulli targets must lie in [0, 1]; {where} has values from "
            f"{float(targets.min()):g} to {float(targets.max()):g}"
        )


def _are_probabilities(values: Tensor) -> bool:
    """Whether the last dimension has probabilities: none is negative, and they sum to one.

    A single row does not count, because its sum may be one by chance.
    """
    values = values.detach()
    if values[..., 0].numel() < 2 or bool((values < 0).any()):
        return False
    exactness = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
    return bool(((values.double().sum(-1) - 1).abs() <= max(1e-5, 2 * exactness)).all())


def _last_operation(output: Tensor) -> str:
    """Return the operation that computed the output, apart from views of it."""
    node = output.grad_fn
    while node is not None and node.name() in VIEWS:
        node = node.next_functions[0][0]
    return "" if node is None else operation(node.name())
