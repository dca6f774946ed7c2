"""The diagonal of the Fisher information of any model, exact for every sample.

    F_i = 1/N Σ_n E_{y ~ p(y|x_n, θ)} [ (∂log p(y | x_n, θ) / ∂θ_i)² ]

(`sampled` replaces the expectation by one draw, `empirical` by the label in the data.) The gradient
of each sample is squared. The square of a batch's mean gradient is something else, and wrong.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ewc.distributed.ranks import ProcessGroup, Ranks, find_ranks
from ewc.distributed.shards import is_sharded, reshard
from ewc.fisher.batches import Collate, FisherBatch, as_batches, read_batches
from ewc.fisher.likelihood import Kind, Likelihood, Positions, check_options
from ewc.fisher.model import PrivateRandomState, preserved, with_structure
from ewc.fisher.passes import FisherPass
from ewc.fisher.sharded import ShardedPass
from ewc.parameters import ParameterSelection, select_parameters, unwrap

Pass = TypeVar("Pass", bound=FisherPass)


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
    process_group: ProcessGroup = None,
) -> dict[str, Tensor]:
    """Return how much each weight matters: the mean squared gradient of log p(y | x, θ).

    The mean is over samples, and each sample's own gradient is squared.

    Args:
        model: any module. It is run in eval mode and left exactly as it was. If it returns several
            outputs, the Fisher is that of its `logits`, or else of the first.
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
        positions: the scale for sequences of labels, which categorical outputs with more than two
            dimensions are. `"mean"` divides by the number of labels that are not ignored instead of
            the number of samples, for losses that are a mean over tokens; `"sum"` divides by the
            number of samples, for losses that are a sum over the tokens of each sample. With a
            callable the same holds if its targets are integers, one for each position of the
            outputs. Other outputs (`"gaussian"`, `"bernoulli"`, several tensors) have no positions:
            all of a sample's outputs are summed over, and both divide by the number of samples.
        max_samples: stop after this many samples; with several ranks, in all of them together.
        parameters: which parameters, as glob patterns of their names (`"!head.*"` excludes), or a
            function of the name; all trainable ones by default.
        generator: the source of random labels for `"sampled"`. Without it the global random state
            is used, but not changed. Several ranks never draw the same numbers.
        process_group: the ranks that share the model, each with its own batches, if any. The
            Fisher is the mean over the samples of all. `DistributedDataParallel` and `fully_shard`
            show which these are; for other models it is a group, `"world"` (all ranks), or
            `"local"` (this one alone).
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
    fisher, ranks = run_pass(
        FisherPass,
        model,
        batches,
        kind=kind,
        likelihood=likelihood,
        positions=positions,
        max_samples=max_samples,
        parameters=parameters,
        generator=generator,
        collate=collate,
        process_group=process_group,
    )
    return fisher.sums.mean(ranks, max_samples, positions)


def run_pass(
    make: type[Pass],
    model: nn.Module,
    batches: Iterable[Any],
    *,
    kind: Kind,
    likelihood: Likelihood,
    positions: Positions,
    max_samples: int | None,
    parameters: ParameterSelection,
    generator: torch.Generator | None,
    collate: Collate | None,
    process_group: ProcessGroup,
) -> tuple[Pass | ShardedPass, Ranks]:
    """Return a pass over all batches, with its sums, and the ranks that share these.

    The arguments are those of `fisher_diagonal`. A sharded model has a pass of its own.
    """
    check_options(kind, likelihood, positions)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "a Fisher needs gradients and cannot be computed under torch.inference_mode(); "
            "torch.no_grad() is fine"
        )
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, not {max_samples}")
    reshard(unwrap(model))  # some modules are still gathered after a forward pass
    selected = select_parameters(model, parameters)
    check_parameters(selected)
    check_batch_norms(model)
    ranks = find_ranks(model, process_group)
    model = unwrap(model)
    sharded = any(map(is_sharded, model.parameters()))
    with ExitStack() as stack:
        random_state = stack.enter_context(preserved(model))
        stack.enter_context(ranks.failing_together())
        batches = as_batches(batches, collate)
        # Looking at a first output would be a pass of its own, which shards must take together.
        if callable(likelihood) and not sharded:
            model, batches, likelihood = with_structure(model, batches, likelihood, random_state)
        if kind == "sampled":
            with random_state:
                generator = ranks.own_generator(generator)
        fisher: Pass | ShardedPass
        if sharded:
            fisher = ShardedPass(model, selected, kind, likelihood, generator, ranks)
            stack.enter_context(fisher)
        else:
            ranks.check_same_weights(selected)
            fisher = make(model, selected, kind, likelihood, generator)
        add_batches(fisher, read_batches(batches, model), ranks.share(max_samples), random_state)
    return fisher, ranks


def add_batches(
    fisher: FisherPass | ShardedPass,
    batches: Iterable[FisherBatch],
    max_samples: int | None,
    random_state: PrivateRandomState,
) -> None:
    """Add batches until there are `max_samples` samples. Loaders draw outside of `random_state`."""
    samples = 0
    for batch in batches if max_samples != 0 else ():
        if max_samples is not None and samples + batch.size > max_samples:
            batch = batch.take(0, max_samples - samples)
        with random_state:
            fisher.add(batch)
        samples += batch.size
        if samples == max_samples:
            break
    with random_state:
        fisher.flush()


def check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise for parameters that have no gradients, or complex ones."""
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(f"{name!r} has no shape yet: run the model once before its Fisher")
        if parameter.is_complex():
            raise TypeError(
                f"the Fisher of a complex parameter is not defined here: leave out {name!r} "
                f"with parameters='!{name}'"
            )


def check_batch_norms(model: nn.Module) -> None:
    """Raise for batch norm without running statistics: a sample alone has none of its own."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"the module {name!r} is a {type(module).__name__} without running statistics: "
                "its outputs depend on the other samples of the batch, and the Fisher is that of "
                "single samples; use track_running_stats=True and train with it, or a GroupNorm "
                "or LayerNorm instead"
            )
