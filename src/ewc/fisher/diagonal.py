"""The diagonal of the Fisher information of any model, exact for every sample.

    F_i = 1/N Σ_n E_{y ~ p(y|x_n, θ)} [ (∂log p(y | x_n, θ) / ∂θ_i)² ]

(`sampled` replaces the expectation by one draw, `empirical` by the label in the data.) The gradient
of each sample is squared. The square of a batch's mean gradient is something else, and wrong.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ewc.fisher.batches import read_batches
from ewc.fisher.datasets import Collate, as_batches
from ewc.fisher.fisher_pass import FisherPass
from ewc.fisher.likelihood import Kind, Likelihood, Positions, check_options
from ewc.fisher.preserve import preserved
from ewc.fisher.structured import with_structure
from ewc.parameters import ParameterSelection, select_parameters, unwrap


def fisher_diagonal(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    kind: Kind = "exact",
    likelihood: Likelihood = "categorical",
    positions: Positions = "mean",
    max_samples: int | None = None,
    parameters: ParameterSelection = None,
    generator: torch.Generator | None = None,
    collate: Collate | None = None,
) -> dict[str, Tensor]:
    """Return how much each weight matters: the mean squared gradient of log p(y | x, θ).

    The mean is over samples, and each sample's own gradient is squared.

    Args:
        model: any module. It is run in eval mode and left exactly as it was.
        batches: yields `(inputs, targets)`, `inputs`, or a mapping of keywords (with `labels`). The
            samples come first. Several inputs go in a tuple, `((first, second), targets)`.
        kind: `"exact"` is the expectation over the model's own labels, with one backward pass per
            class; `"sampled"` draws one label per sample from the model; `"empirical"` uses the
            labels in the data.
        likelihood: `"categorical"` (logits in the last dimension; a label of -100 is ignored),
            `"gaussian"` (unit variance), `"bernoulli"` (logits), or, for `"empirical"`, a callable
            `(outputs, targets) -> log p` that returns one value per sample. The log-likelihood of a
            sequence is the sum over its positions. A callable gets what the model returns and the
            targets of the batch, which may be tuples, mappings, or a list of one item per sample;
            of a mapping with `logits` it gets these.
        positions: the scale for outputs with more than two dimensions, such as sequences of tokens.
            `"mean"` divides by the number of positions that are not ignored instead of the number
            of samples, for losses that are a mean over tokens; `"sum"` divides by the number of
            samples, for losses that are a sum over the tokens of each sample.
        max_samples: stop after this many samples.
        parameters: which parameters, as glob patterns of their names (`"!head.*"` excludes), or a
            function of the name; all trainable ones by default.
        generator: the source of random labels for `"sampled"`. Without it the global random state
            is used, but not changed.
        collate: makes a batch of a list of samples, if `batches` is a dataset of single samples
            (of PyTorch, of Hugging Face, or a list).

    Returns:
        One tensor per parameter, by name, at least float32; zeros where the output does not depend
        on it.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Linear(4, 3)
        >>> fisher = ewc.fisher_diagonal(model, [(torch.randn(8, 4), torch.randint(3, (8,)))])
        >>> {name: tuple(values.shape) for name, values in fisher.items()}
        {'weight': (3, 4), 'bias': (3,)}
    """
    check_options(kind, likelihood, positions)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "fisher_diagonal needs gradients and cannot run under torch.inference_mode(); "
            "torch.no_grad() is fine"
        )
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, not {max_samples}")
    model = unwrap(model)
    selected = select_parameters(model, parameters)
    _check_parameters(selected)
    batches = as_batches(batches, collate)
    with preserved(model) as random_state:
        if callable(likelihood):
            model, batches, likelihood = with_structure(model, batches, likelihood, random_state)
        fisher = FisherPass(model, selected, kind, likelihood, generator)
        samples = 0
        for batch in read_batches(batches, model):
            if max_samples is not None and samples + batch.size > max_samples:
                batch = batch.take(0, max_samples - samples)
            with random_state:
                fisher.add(batch)
            samples += batch.size
            if samples == max_samples:
                break
        with random_state:
            fisher.flush()
    return fisher.mean(max_samples, positions)


def _check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(f"{name!r} has no shape yet: run the model once before its Fisher")
        if parameter.is_complex():
            raise TypeError(
                f"the Fisher of a complex parameter is not defined here: leave out {name!r} "
                f"with parameters='!{name}'"
            )
