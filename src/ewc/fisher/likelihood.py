"""What a model's outputs say about its labels, as gradients at the outputs.

Every Fisher here is a sum of squares of `(∂output/∂θ)ᵀ v` over samples and over some vectors `v` at
the outputs, the *cotangents*. This file computes them:

- `exact`: vectors with `Σ_k v_k v_kᵀ = E_y[∂log p(y)/∂output ∂log p(y)/∂outputᵀ]`, the expectation
  over all labels;
- `sampled`: `v = ∂log p(y)/∂output` for one label `y` drawn from the model;
- `empirical`: the same for the label in the data.

The positions of a sequence, or several outputs, are independent given the input, and the sample's
log-likelihood is their sum. The cross terms vanish in the expectation, so `exact` takes positions
one by one and is still exact. `count_positions` returns how many there are, for losses that are
means over positions.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from ewc.dtypes import widened
from ewc.fisher.callable_likelihood import LogLikelihood, callable_cotangent, take_values
from ewc.fisher.output_checks import IGNORE as IGNORE
from ewc.fisher.output_checks import Kind as Kind
from ewc.fisher.output_checks import LikelihoodName as LikelihoodName
from ewc.fisher.output_checks import check_agreement
from ewc.fisher.sampling import draw_classes, draw_normal, draw_uniform

Likelihood = LikelihoodName | LogLikelihood
Positions = Literal["mean", "sum"]

MAX_EXACT_OUTPUTS = 1000


def check_options(kind: str, likelihood: object, positions: str) -> None:
    """Raise for an unknown kind, likelihood or scale, and suggest the closest name."""
    _check_name("kind", kind, get_args(Kind))
    _check_name("positions", positions, get_args(Positions))
    if callable(likelihood):
        if kind != "empirical":
            raise ValueError(
                f"kind={kind!r} needs the model's own labels, which a callable likelihood cannot "
                "give: use kind='empirical'"
            )
        return
    _check_name("likelihood", likelihood, get_args(LikelihoodName))


def _check_name(what: str, name: object, known: tuple[str, ...]) -> None:
    if name in known:
        return
    near = get_close_matches(str(name), known, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{what} must be one of {', '.join(known)}, not {name!r}{hint}")


def cotangents(
    output: Tensor,
    targets: Tensor | None,
    mask: Tensor | None,
    *,
    kind: Kind,
    likelihood: Likelihood,
    generator: torch.Generator | None,
    where: str,
) -> Iterator[Tensor]:
    """Yield the vectors at `output` whose squares, after a backward pass, sum to the Fisher.

    Args:
        output: what the model returned for a batch, samples first.
        targets: the labels of the batch, if there are any.
        mask: true at the positions that count, if some do not.
        kind: which labels to use, see `fisher_diagonal`.
        likelihood: what the outputs mean, see `fisher_diagonal`.
        generator: the source of random labels.
        where: the name of the batch in error messages.
    """
    out = widened(output.detach())
    if kind == "empirical" and targets is None and likelihood is not take_values:
        raise ValueError(
            f"kind='empirical' needs targets, but {where} has none: yield (inputs, targets), or a "
            "mapping with the key 'labels'"
        )
    if callable(likelihood):
        yield callable_cotangent(likelihood, out, targets, where)
        return
    targets = check_agreement(output, targets, kind, likelihood, where)
    counted = counted_positions(out, targets, mask, likelihood)
    if likelihood == "categorical":
        yield from _categorical(out, targets, counted, kind, generator)
    else:
        if counted is not None:
            counted = counted.unsqueeze(-1)
        for vector in _elementwise(out, targets, kind, likelihood, generator):
            yield vector if counted is None else vector * counted


def count_positions(
    output: Tensor, targets: Tensor | None, mask: Tensor | None, likelihood: Likelihood
) -> int:
    """Return how many positions of a batch count.

    Positions are in the dimensions between the first and the last; those that are ignored do not
    count. A sample without such dimensions, or with a callable likelihood, is one position.
    """
    if callable(likelihood):
        return len(output)
    counted = counted_positions(output, targets, mask, likelihood)
    return prod(output.shape[:1] + output.shape[1:-1]) if counted is None else int(counted.sum())


def _categorical(
    logits: Tensor,
    targets: Tensor | None,
    counted: Tensor | None,
    kind: Kind,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Softmax over the last dimension: ∂log p_y/∂logits = onehot(y) − p."""
    probabilities = logits.softmax(-1)
    if kind == "exact":
        yield from _every_class(probabilities, counted)
        return
    labels = (
        targets
        if kind == "empirical" and targets is not None
        else draw_classes(probabilities, generator)
    )
    if counted is not None:
        labels = labels.clamp(min=0)
    labels = labels.unsqueeze(-1)
    cotangent = probabilities.neg_().scatter_(-1, labels, 0.0)
    # 1 − p_y as the sum of the others: where p_y is close to one, the difference would be zero
    cotangent.scatter_(-1, labels, -cotangent.sum(-1, keepdim=True))
    if counted is not None:
        cotangent.mul_(counted.unsqueeze(-1))
    yield cotangent


def _every_class(probabilities: Tensor, counted: Tensor | None) -> Iterator[Tensor]:
    """Columns of a square root of E[∂log p ∂log pᵀ] = diag(p) − ppᵀ, at each position in turn.

    The Cholesky factor has one column less than √p_k (e_k − p) would give, which saves a backward
    pass. With the tails q_j = Σ_{k>j} p_k and t_j = q_j + p_j,

        L_jj = √(p_j q_j / t_j)    and    L_ij = −p_i √(p_j / (q_j t_j)) for i > j.
    """
    refuse_many_outputs(probabilities[0].numel())
    batch, classes = probabilities.shape[0], probabilities.shape[-1]
    p = probabilities.reshape(batch, -1, classes)
    tiny = torch.finfo(p.dtype).tiny
    tails = p.flip(-1).cumsum(-1).flip(-1)
    root_after = tails.roll(-1, -1).sqrt()
    share = (p / tails.clamp_min(tiny)).sqrt()
    if counted is not None:
        share = share * counted.reshape(batch, -1, 1)
    diagonal, below = share * root_after, -share / root_after.clamp_min(tiny)
    for position in range(p.shape[1]):
        for j in range(classes - 1):
            column = p[:, position] * below[:, position, j, None]
            column[:, :j] = 0
            column[:, j] = diagonal[:, position, j]
            yield _at_position(column, position, p.shape).reshape(probabilities.shape)


def _at_position(values: Tensor, position: int, shape: torch.Size) -> Tensor:
    """Return `values` (batch, classes) at one position, and zero at the others."""
    if shape[1] == 1:
        return values
    everywhere = values.new_zeros(shape)
    everywhere[:, position] = values
    return everywhere


def refuse_many_outputs(outputs: int) -> None:
    """Raise for `exact` with more outputs than anyone would want to wait for."""
    if outputs > MAX_EXACT_OUTPUTS:
        raise ValueError(
            "kind='exact' takes one backward pass per output and is refused above "
            f"{MAX_EXACT_OUTPUTS}; this model has {outputs} per sample: use kind='sampled'"
        )


def counted_positions(
    output: Tensor, targets: Tensor | None, mask: Tensor | None, likelihood: LikelihoodName
) -> Tensor | None:
    """Return whether each position counts; None if all count.

    A position counts if it is labeled (not -100) or, without labels, if the mask includes it.
    """
    counted = mask
    if targets is not None and likelihood == "categorical" and not targets.is_floating_point():
        ignored = targets == IGNORE
        counted = ~ignored if bool(ignored.any()) else None
    if counted is None or output.ndim < 2:
        return None
    if output.ndim == 3 and not bool(counted[:, output.shape[1] :].any()):
        counted = counted[:, : output.shape[1]]  # the model has cut off what is hidden at the end
    if counted.shape == output.shape[:-1]:
        return counted.bool()
    if output.ndim > 2 and not bool(counted.all()):
        raise ValueError(
            f"the attention mask has shape {tuple(counted.shape)} and hides positions, but the "
            f"outputs have the positions {tuple(output.shape[:-1])}: which of these count? Give "
            "labels of that shape, with -100 where a position does not count"
        )
    return None


def _elementwise(
    out: Tensor,
    targets: Tensor | None,
    kind: Kind,
    likelihood: LikelihoodName,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Independent outputs, gaussian (unit variance) or bernoulli (logits).

    ∂log p(y)/∂output = y − mean.
    """
    if kind == "empirical" and targets is not None:
        values = targets.to(out.dtype)
        yield values - out if likelihood == "gaussian" else _deviation(values, out)
    elif kind == "exact":
        variance = out.sigmoid() * (-out).sigmoid()
        yield from _every_output(
            torch.ones_like(out) if likelihood == "gaussian" else variance.sqrt()
        )
    elif likelihood == "gaussian":
        yield draw_normal(out, generator)
    else:
        uniform = draw_uniform(out.shape, out, generator)
        yield _deviation((uniform <= out.sigmoid()).to(out.dtype), out)


def _deviation(values: Tensor, logits: Tensor) -> Tensor:
    """Return y − σ(x), computed as y σ(−x) − (1 − y) σ(x).

    Where σ(x) is close to one, the difference itself would be zero.
    """
    return values * (-logits).sigmoid() - (1 - values) * logits.sigmoid()


def _every_output(deviation: Tensor) -> Iterator[Tensor]:
    """Yield σ_j e_j for each output j."""
    refuse_many_outputs(deviation[0].numel())
    flat = deviation.reshape(len(deviation), -1)
    for j in range(flat.shape[1]):
        cotangent = torch.zeros_like(flat)
        cotangent[:, j] = flat[:, j]
        yield cotangent.reshape(deviation.shape)
