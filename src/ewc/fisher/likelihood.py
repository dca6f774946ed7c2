"""What a model's outputs say about its labels, as gradients at the outputs.

Every Fisher here is a sum of squares of `(∂output/∂θ)ᵀ v` over samples and over some vectors `v` at
the outputs, the *cotangents*. This file makes them:

- `exact`: vectors with `Σ_k v_k v_kᵀ = E_y[∂log p(y)/∂output ∂log p(y)/∂outputᵀ]`, the expectation
  over all labels;
- `sampled`: `v = ∂log p(y)/∂output` for one label `y` drawn from the model;
- `empirical`: the same for the label in the data.

Several positions (a sequence) or outputs are independent given the input, and the sample's
log-likelihood is their sum. In the expectation the cross terms vanish, so `exact` takes the
positions one by one and is still exact. `count_positions` says how many there are, for losses that
are means over positions. Draws invert the cumulative distribution of one uniform
number per outcome, taken in order: the labels do not depend on how the samples are split into
batches.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from ewc.fisher.autograd.graph import Graph
from ewc.fisher.output_checks import IGNORE as IGNORE
from ewc.fisher.output_checks import Kind as Kind
from ewc.fisher.output_checks import LikelihoodName as LikelihoodName
from ewc.fisher.output_checks import check_agreement

LogLikelihood = Callable[[Tensor, Tensor | None], Tensor]
Likelihood = LikelihoodName | LogLikelihood
Positions = Literal["mean", "sum"]

MAX_EXACT_OUTPUTS = 1000


def check_options(kind: str, likelihood: object, positions: str) -> None:
    """Refuse an unknown kind, likelihood or scale, naming the nearest one."""
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
    """The vectors at `output` (batch first) whose pulled-back squares sum to the Fisher of the
    batch.

    `mask` is true at the positions that count, `where` names the batch in errors.
    """
    out = output.detach()
    if out.dtype in (torch.float16, torch.bfloat16):
        out = out.float()
    if kind == "empirical" and targets is None:
        raise ValueError(
            f"kind='empirical' needs targets, but {where} has none: yield (inputs, targets)"
        )
    if callable(likelihood):
        cotangent = _of_callable(likelihood, out, targets, where)
        _check_apart(likelihood, out, targets, cotangent)
        yield cotangent
        return
    targets = check_agreement(output, targets, kind, likelihood, where)
    counted = _counted_positions(out, targets, mask, likelihood)
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
    """How many positions of a batch count: all that lie between the first dimension and the last,
    less those that are ignored. A sample without such dimensions, or with a callable likelihood, is
    one position.
    """
    if callable(likelihood):
        return len(output)
    counted = _counted_positions(output, targets, mask, likelihood)
    return prod(output.shape[:1] + output.shape[1:-1]) if counted is None else int(counted.sum())


def _of_callable(
    log_likelihood: LogLikelihood, out: Tensor, targets: Tensor | None, where: str
) -> Tensor:
    """∂/∂output of the sum over samples of `log_likelihood(output, targets)`, one value a
    sample.
    """
    with torch.enable_grad():
        out = out.requires_grad_()
        value = log_likelihood(out, targets)
    if not isinstance(value, Tensor) or value.shape != out.shape[:1]:
        came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"a callable likelihood must return one value a sample, shape {tuple(out.shape[:1])}; "
            f"for {where} it returned {came}"
        )
    _refuse_parameters_within(value, out)
    (cotangent,) = torch.autograd.grad(value, out, torch.ones_like(value))
    return cotangent


def _check_apart(
    log_likelihood: LogLikelihood, out: Tensor, targets: Tensor | None, cotangent: Tensor
) -> None:
    """Refuse a likelihood of a sample that depends on the others, or on how many there are."""
    last = slice(len(out) - 1, None)
    alone = _of_callable(
        log_likelihood, out[last].detach(), None if targets is None else targets[last], "a sample"
    )
    size = cotangent[last].abs().max()
    if bool((alone - cotangent[last]).abs().max() > torch.finfo(out.dtype).eps ** 0.5 * size):
        raise ValueError(
            "a callable likelihood must treat samples apart, but its gradient for a sample is "
            "another one alone: sum over outputs and positions, and neither sum nor average over "
            "samples"
        )


def _refuse_parameters_within(value: Tensor, out: Tensor) -> None:
    for node in Graph(value, {}).nodes:
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf is not out:
            raise ValueError(
                "a callable likelihood must depend on its arguments alone, but this one uses a "
                f"parameter of shape {tuple(leaf.shape)}: return what it needs from the model"
            )


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
        else _draw_class(probabilities, generator)
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

    Its Cholesky factor has one column fewer than √p_k (e_k − p) would give, and so saves a backward
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
    """`values` (batch, classes) at one position, zero at the others."""
    if shape[1] == 1:
        return values
    everywhere = values.new_zeros(shape)
    everywhere[:, position] = values
    return everywhere


def refuse_many_outputs(outputs: int) -> None:
    """`exact` costs a backward an output: past a thousand it is not what the user wants."""
    if outputs > MAX_EXACT_OUTPUTS:
        raise ValueError(
            "kind='exact' takes a backward pass an output and is refused above "
            f"{MAX_EXACT_OUTPUTS}; this model has {outputs} a sample: use kind='sampled'"
        )


def _counted_positions(
    output: Tensor, targets: Tensor | None, mask: Tensor | None, likelihood: LikelihoodName
) -> Tensor | None:
    """1 where a position counts: labelled (not -100) or, without labels, attended to; None if all
    do.
    """
    counted = mask
    if targets is not None and likelihood == "categorical" and not targets.is_floating_point():
        ignored = targets == IGNORE
        counted = ~ignored if bool(ignored.any()) else None
    if counted is None or output.ndim < 2 or counted.shape != output.shape[:-1]:
        return None
    return counted.to(output.dtype)


def _uniform(shape: torch.Size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in (0, 1], drawn in order where the generator lives, so that a seed means one
    thing anywhere.
    """
    device = generator.device if generator is not None else torch.device("cpu")
    drawn = torch.rand(shape, generator=generator, device=device, dtype=torch.float32)
    return (1.0 - drawn).to(like.device, like.dtype)


def _draw_class(
    probabilities: Tensor, generator: torch.Generator | None, block: int = 256
) -> Tensor:
    """One class a position by inverting the cumulative sum, in blocks: summing 50,000 classes in a
    row would round.
    """
    classes = probabilities.shape[-1]
    uniform = _uniform(probabilities.shape[:-1], probabilities, generator).unsqueeze(-1)
    if classes <= block:
        return _invert(probabilities, uniform).squeeze(-1)
    whole = classes - classes % block
    sums = probabilities[..., :whole].unflatten(-1, (-1, block)).sum(-1)
    if whole < classes:
        sums = torch.cat([sums, probabilities[..., whole:].sum(-1, keepdim=True)], -1)
    cumulative = sums.cumsum(-1)
    chosen = _invert(sums, uniform)
    below = cumulative.gather(-1, chosen) - sums.gather(-1, chosen)
    share = (uniform * cumulative[..., -1:] - below) / sums.gather(-1, chosen)
    members = chosen * block + torch.arange(block, device=chosen.device)
    inside = probabilities.gather(-1, members.clamp_max(classes - 1)) * (members < classes)
    tiny = torch.finfo(share.dtype).tiny
    return (chosen * block + _invert(inside, share.clamp(tiny, 1.0))).squeeze(-1)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index at which the cumulative share of `weights` reaches `uniform` > 0; its weight
    is never zero.
    """
    cumulative = weights.cumsum(-1)
    return torch.searchsorted(cumulative, uniform * cumulative[..., -1:])


def _elementwise(
    out: Tensor,
    targets: Tensor | None,
    kind: Kind,
    likelihood: LikelihoodName,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Independent outputs, gaussian (unit variance) or bernoulli (logits): ∂log p(y)/∂output = y −
    mean.
    """
    if kind == "empirical" and targets is not None:
        values = targets.to(out.dtype)
        yield values - out if likelihood == "gaussian" else _deviation(values, out)
    elif kind == "exact":
        variance = out.sigmoid() * (-out).sigmoid()
        yield from _every_output(
            torch.ones_like(out) if likelihood == "gaussian" else variance.sqrt()
        )
    else:
        uniform = _uniform(out.shape, out, generator)
        yield (
            torch.special.ndtri((uniform - 2.0**-25).clamp(max=1 - 2.0**-24))  # finite at 1
            if likelihood == "gaussian"
            else _deviation((uniform <= out.sigmoid()).to(out.dtype), out)
        )


def _deviation(values: Tensor, logits: Tensor) -> Tensor:
    """y − σ(x), as y σ(−x) − (1 − y) σ(x): where σ(x) is close to one, the difference would be
    zero.
    """
    return values * (-logits).sigmoid() - (1 - values) * logits.sigmoid()


def _every_output(deviation: Tensor) -> Iterator[Tensor]:
    """σ_j e_j for each output j."""
    refuse_many_outputs(deviation[0].numel())
    flat = deviation.reshape(len(deviation), -1)
    for j in range(flat.shape[1]):
        cotangent = torch.zeros_like(flat)
        cotangent[:, j] = flat[:, j]
        yield cotangent.reshape(deviation.shape)
