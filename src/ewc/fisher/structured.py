"""Models and targets that are no single tensor, with a log-likelihood that the user gives.

A detection model returns several tensors, and its targets are a list with one dict per image. Such
a model is wrapped together with the function, so that its output is the log-likelihood of each
sample. The Fisher needs no more than that: F = 1/N Σ_n (∂log p(y_n | x_n, θ) / ∂θ)².
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ewc.fisher.batches import is_encoder_decoder
from ewc.fisher.callable_likelihood import LogLikelihood, take_values


def with_structure(
    model: nn.Module,
    batches: Iterable[Any],
    log_likelihood: LogLikelihood,
    random_state: AbstractContextManager[Any],
) -> tuple[nn.Module, Iterable[Any], LogLikelihood]:
    """Return model, batches and log-likelihood such that outputs and targets are tensors.

    They are returned as they are if they are tensors already.

    Args:
        model: the model, in eval mode.
        batches: the user's batches. The first decides.
        log_likelihood: the user's function of outputs and targets.
        random_state: entered around the run of the model.
    """
    if isinstance(batches, Tensor | Mapping | str):
        return model, batches, log_likelihood  # refused when it is read
    rest = iter(batches)
    first = list(_first_of(rest))
    batches = chain(first, rest)
    if not first or not _is_structured(model, first[0], random_state):
        return model, batches, log_likelihood
    return LogLikelihoodModel(model, log_likelihood), map(_as_inputs, batches), take_values


class LogLikelihoodModel(nn.Module):
    """A model whose outputs are the log-likelihoods of the samples; targets are its last input."""

    def __init__(self, model: nn.Module, log_likelihood: LogLikelihood) -> None:
        super().__init__()
        self.model = model
        self.log_likelihood = log_likelihood

    def forward(self, inputs: Any, targets: Any) -> Tensor:
        """Return log p(targets | inputs), one value per sample."""
        first = _tensors(inputs)[0]
        values = self.log_likelihood(_call(self.model, inputs), _lists(targets, first.device))
        size = len(first)
        if not isinstance(values, Tensor) or tuple(values.shape) != (size,):
            came = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"a callable likelihood must return one value per sample, shape ({size},); "
                f"it returned {came}"
            )
        return values


def _first_of(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield item
        return


def _is_structured(model: nn.Module, item: Any, random_state: AbstractContextManager[Any]) -> bool:
    """Whether the targets of a batch, or the model's outputs for it, are no single tensor."""
    inputs, targets = _split(item)
    if targets is not None and not isinstance(targets, Tensor):
        return True
    if is_encoder_decoder(model) and isinstance(item, Mapping):
        inputs = item  # the inputs of its decoder are computed from the labels
    if not _tensors(inputs):
        return False  # refused when it is read
    with random_state, torch.no_grad():
        out = _call(model, inputs)
    has_logits = hasattr(out, "logits") or (isinstance(out, Mapping) and "logits" in out)
    return not isinstance(out, Tensor) and not has_logits


def _split(item: Any) -> tuple[Any, Any]:
    """Return the inputs and the targets of a batch; the labels stay in a mapping without others."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, Mapping) and "labels" in item:
        return {key: value for key, value in item.items() if key != "labels"}, item["labels"]
    return (item[0] if isinstance(item, tuple | list) and len(item) == 1 else item), None


def _as_inputs(item: Any) -> tuple[Any]:
    """Return a batch whose inputs are those of `LogLikelihoodModel`."""
    inputs, targets = _split(item)
    tensors = _tensors(inputs)
    return ((inputs, _arrays(targets, len(tensors[0]) if tensors else 0)),)


def _call(model: nn.Module, inputs: Any) -> Any:
    """Call the model as it is called for batches of these forms."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _arrays(targets: Any, size: int) -> Any:
    """Return the targets with arrays for lists of one item per sample: arrays are cut by samples.

    Other lists have one part for all samples in each place.
    """
    if isinstance(targets, Mapping):
        return {key: _arrays(value, size) for key, value in targets.items()}
    if not isinstance(targets, list) or not _is_per_sample(targets, size):
        return targets
    array = np.empty(size, dtype=object)
    for n, item in enumerate(targets):
        array[n] = item
    return array


def _is_per_sample(values: list[Any], size: int) -> bool:
    if len(values) != size:
        return False
    if any(isinstance(value, Mapping) for value in values):
        return True
    parts = all(isinstance(value, Tensor) and value.shape[:1] == (size,) for value in values)
    if parts:
        raise ValueError(
            f"targets are a list of {size} tensors with {size} rows each, in a batch of {size}: "
            "are they parts, or samples? Use a tuple or a mapping for parts, dicts for samples, "
            "or another batch size"
        )
    return True


def _lists(targets: Any, device: torch.device) -> Any:
    """Return the targets with lists for arrays, and their tensors on a device."""
    if isinstance(targets, Tensor):
        return targets.to(device)
    if isinstance(targets, Mapping):
        return {key: _lists(value, device) for key, value in targets.items()}
    if isinstance(targets, np.ndarray) and targets.dtype == object:
        targets = targets.tolist()
    if isinstance(targets, tuple | list):
        return type(targets)(_lists(value, device) for value in targets)
    return targets


def _tensors(value: Any) -> list[Tensor]:
    """Return all tensors that contain samples."""
    if isinstance(value, Tensor):
        return [value] if value.ndim else []
    if not isinstance(value, Mapping | tuple | list):
        return []
    parts = value.values() if isinstance(value, Mapping) else value
    return [tensor for part in parts for tensor in _tensors(part)]
