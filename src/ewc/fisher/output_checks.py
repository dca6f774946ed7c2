"""Outputs and targets that contradict the likelihood, found before they become a wrong number.

A Fisher can be computed for any output, also for probabilities taken for logits, or for the width
of an image taken for its classes. Targets, where there are any, tell what the output means, for the
kinds of Fisher that do not need them too.
"""

import warnings
from typing import Literal

import torch
from torch import Tensor

from ewc.fisher.autograd.graph import VIEWS, operation
from ewc.warnings import EWCWarning

Kind = Literal["exact", "sampled", "empirical"]
LikelihoodName = Literal["categorical", "gaussian", "bernoulli"]

IGNORE = -100  # the label of a position that does not count


def check_agreement(
    output: Tensor, targets: Tensor | None, kind: Kind, likelihood: LikelihoodName, where: str
) -> Tensor | None:
    """Refuse what cannot be meant, and say what may be; return the targets, labels as int64."""
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
        _distributions(output[:2]) and _distributions(output)
    ):
        raise ValueError(
            "likelihood='categorical' needs logits, but the outputs are probabilities (for "
            f"{where} they add up to 1): leave the softmax out, or return the logarithm"
        )
    if output.ndim > 3 and targets is None:
        warnings.warn(
            f"the outputs have shape {shape}, and the last dimension is taken for {shape[-1]} "
            "classes; if the classes are in dimension 1, return outputs.movedim(1, -1)",
            EWCWarning,
            stacklevel=2,
        )


def _check_classes(output: Tensor, targets: Tensor, kind: Kind, where: str) -> None:
    """Targets of a categorical likelihood: class numbers, or probabilities where no label is
    needed.
    """
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
    elif targets.shape == output.shape and _distributions(targets):
        if kind == "empirical":
            raise ValueError(f"{expected}. For one-hot labels take targets.argmax(-1)")
    elif targets.shape == output.shape and bool(((targets >= 0) & (targets <= 1)).all()):
        raise ValueError(f"{expected}. For several labels per sample use likelihood='bernoulli'")
    elif not integer:
        raise ValueError(f"{expected}. For regression use likelihood='gaussian'")
    else:
        raise ValueError(
            f"{expected}. If they are not labels of these outputs, yield the inputs alone"
        )


def _check_range(labels: Tensor, classes: int, where: str) -> None:
    least, most = labels.aminmax()
    if 0 <= int(least) <= int(most) < classes:
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
    """Targets of a gaussian or bernoulli likelihood: one value per output."""
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
            f"bernoulli targets must lie in [0, 1]; {where} reaches from "
            f"{float(targets.min()):g} to {float(targets.max()):g}"
        )


def _distributions(values: Tensor) -> bool:
    """Whether the last dimension holds probabilities: none negative, and all add up to one. A
    single row may do so by chance.
    """
    values = values.detach()
    if values[..., 0].numel() < 2 or bool((values < 0).any()):
        return False
    exactness = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
    return bool(((values.double().sum(-1) - 1).abs() <= max(1e-5, 2 * exactness)).all())


def _last_operation(output: Tensor) -> str:
    """The operation that made the output, reshaping aside."""
    node = output.grad_fn
    while node is not None and node.name() in VIEWS:
        node = node.next_functions[0][0]
    return "" if node is None else operation(node.name())
