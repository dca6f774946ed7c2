"""What a model's outputs say about its labels, as gradients at the outputs.

Every Fisher here is a sum of squares of `(∂output/∂θ)ᵀ v` over samples and over some vectors `v` at the outputs, the
*cotangents*. This file makes them:

- `exact`: `v_k = √p_k ∂log p_k/∂output`, one for every outcome k, so that `Σ_k` is the expectation over labels;
- `sampled`: `v = ∂log p(y)/∂output` for one label `y` drawn from the model;
- `empirical`: the same for the label in the data.

Several positions (a sequence) or outputs are independent given the input, and the sample's log-likelihood is their sum.
In the expectation the cross terms vanish, so `exact` needs one cotangent a position and outcome and is still exact.
Draws invert the cumulative distribution of one uniform number an outcome, taken in order: the labels do not depend on
how the samples are split into batches.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Literal, get_args

import torch
from torch import Tensor

Kind = Literal["exact", "sampled", "empirical"]
LikelihoodName = Literal["categorical", "gaussian", "bernoulli"]
LogLikelihood = Callable[[Tensor, Tensor | None], Tensor]
Likelihood = LikelihoodName | LogLikelihood

IGNORE = -100
MAX_EXACT_OUTPUTS = 1000


def check_options(kind: str, likelihood: object) -> None:
    """Refuse an unknown kind or likelihood, naming the nearest one."""
    _check_name("kind", kind, get_args(Kind))
    if callable(likelihood):
        if kind != "empirical":
            raise ValueError(
                f"kind={kind!r} needs the model's own labels, which a callable likelihood cannot give: "
                "use kind='empirical'"
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
    """The vectors at `output` (batch first) whose pulled-back squares sum to the Fisher of the batch.

    `mask` is true at the positions that count, `where` names the batch in errors.
    """
    out = output.detach()
    if out.dtype in (torch.float16, torch.bfloat16):
        out = out.float()
    if kind == "empirical" and targets is None:
        raise ValueError(f"kind='empirical' needs targets, but {where} has none: yield (inputs, targets)")
    if callable(likelihood):
        yield _of_callable(likelihood, out, targets, where)
    elif likelihood == "categorical":
        yield from _categorical(out, targets, mask, kind, generator, where)
    else:
        yield from _elementwise(out, targets, kind, likelihood, generator, where)


def _of_callable(log_likelihood: LogLikelihood, out: Tensor, targets: Tensor | None, where: str) -> Tensor:
    """∂/∂output of the sum over samples of `log_likelihood(output, targets)`, one value a sample."""
    out = out.requires_grad_()
    value = log_likelihood(out, targets)
    if not isinstance(value, Tensor) or value.shape != out.shape[:1]:
        came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"a callable likelihood must return one value a sample, shape {tuple(out.shape[:1])}; "
                         f"for {where} it returned {came}")
    (cotangent,) = torch.autograd.grad(value.sum(), out)
    return cotangent


def _categorical(
    logits: Tensor, targets: Tensor | None, mask: Tensor | None, kind: Kind,
    generator: torch.Generator | None, where: str,
) -> Iterator[Tensor]:
    """Softmax over the last dimension: ∂log p_y/∂logits = onehot(y) − p."""
    if logits.ndim < 2 or logits.shape[-1] < 2:
        raise ValueError(f"likelihood='categorical' needs outputs (batch, ..., classes) with 2 classes or more; "
                         f"{where} gave {tuple(logits.shape)}: use 'bernoulli' or 'gaussian' for single outputs")
    counted = _counted_positions(logits, targets, mask)
    probabilities = logits.softmax(-1)
    if kind == "exact":
        yield from _every_class(probabilities, counted)
        return
    if kind == "sampled":
        labels = _draw_class(probabilities, generator)
    else:
        labels = _checked_labels(logits, targets, where)
    cotangent = probabilities.neg_()
    one = torch.ones((), dtype=logits.dtype, device=logits.device).expand(*labels.shape, 1)
    cotangent.scatter_add_(-1, labels.clamp(min=0).unsqueeze(-1), one)
    if counted is not None:
        cotangent.mul_(counted.unsqueeze(-1))
    yield cotangent


def _every_class(probabilities: Tensor, counted: Tensor | None) -> Iterator[Tensor]:
    """√p_k (e_k − p) at each position in turn: a cotangent a position and class."""
    batch, classes = probabilities.shape[0], probabilities.shape[-1]
    refuse_many_outputs(probabilities[0].numel())
    flat = probabilities.reshape(batch, -1, classes)
    weight = flat.sqrt()
    if counted is not None:
        weight = weight * counted.reshape(batch, -1, 1)
    for position in range(flat.shape[1]):
        for k in range(classes):
            cotangent = torch.zeros_like(flat)
            cotangent[:, position] = -flat[:, position]
            cotangent[:, position, k] += 1.0
            cotangent[:, position] *= weight[:, position, k, None]
            yield cotangent.reshape(probabilities.shape)


def refuse_many_outputs(outputs: int) -> None:
    """`exact` costs a backward an output: past a thousand it is not what the user wants."""
    if outputs > MAX_EXACT_OUTPUTS:
        raise ValueError(f"kind='exact' takes a backward pass an output and is refused above {MAX_EXACT_OUTPUTS}; "
                         f"this model has {outputs} a sample: use kind='sampled'")


def _counted_positions(logits: Tensor, targets: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """True where a position counts: labelled (not -100), or, without labels, attended to."""
    counted = mask
    if targets is not None and not targets.is_floating_point() and targets.shape == logits.shape[:-1]:
        counted = targets != IGNORE
    if counted is None or counted.shape != logits.shape[:-1] or bool(counted.all()):
        return None
    return counted.to(logits.dtype)


def _checked_labels(logits: Tensor, targets: Tensor | None, where: str) -> Tensor:
    assert targets is not None
    classes = logits.shape[-1]
    if targets.is_floating_point() or targets.shape != logits.shape[:-1]:
        raise ValueError(f"categorical targets must be integer labels of shape {tuple(logits.shape[:-1])} (classes in "
                         f"the last dimension of the outputs); {where} has {targets.dtype} {tuple(targets.shape)}")
    bad = ((targets < 0) & (targets != IGNORE)) | (targets >= classes)
    if bool(bad.any()):
        raise ValueError(f"labels must be 0 to {classes - 1} (or {IGNORE}, ignored); "
                         f"{where} has {int(targets[bad][0])}")
    return targets.long()


def _uniform(shape: torch.Size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in (0, 1), drawn in order where the generator lives, so that a seed means one thing anywhere."""
    device = generator.device if generator is not None else torch.device("cpu")
    tiny = torch.finfo(torch.float32).tiny
    return torch.rand(shape, generator=generator, device=device).clamp_min_(tiny).to(like.device, like.dtype)


def _draw_class(probabilities: Tensor, generator: torch.Generator | None, block: int = 256) -> Tensor:
    """One class a position by inverting the cumulative sum, in blocks: summing 50,000 classes in a row would round."""
    classes = probabilities.shape[-1]
    uniform = _uniform(probabilities.shape[:-1], probabilities, generator).unsqueeze(-1)
    if classes <= block:
        return _invert(probabilities, uniform).squeeze(-1)
    padded = torch.nn.functional.pad(probabilities, (0, -classes % block)).unflatten(-1, (-1, block))
    sums = padded.sum(-1)
    chosen = _invert(sums, uniform)
    below = sums.cumsum(-1).gather(-1, chosen) - sums.gather(-1, chosen)
    inside = padded.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, block)).squeeze(-2)
    rest = (uniform - below / sums.sum(-1, keepdim=True)).clamp_min(0) / (sums.gather(-1, chosen) / sums.sum(-1, True))
    return (chosen * block + _invert(inside, rest)).squeeze(-1).clamp_max(classes - 1)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose cumulative share of `weights` exceeds `uniform`; never one of zero weight."""
    cumulative = weights.cumsum(-1)
    index = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True)
    last = (weights > 0).cumsum(-1).argmax(-1, keepdim=True)
    return torch.minimum(index, last)


def _elementwise(
    out: Tensor, targets: Tensor | None, kind: Kind, likelihood: LikelihoodName,
    generator: torch.Generator | None, where: str,
) -> Iterator[Tensor]:
    """Independent outputs, gaussian (unit variance) or bernoulli (logits): ∂log p(y)/∂output = y − mean."""
    mean = out if likelihood == "gaussian" else out.sigmoid()
    if kind == "exact":
        deviation = torch.ones_like(out) if likelihood == "gaussian" else (mean * (1 - mean)).sqrt()
        yield from _every_output(deviation)
    elif kind == "sampled":
        uniform = _uniform(out.shape, out, generator)
        yield torch.special.ndtri(uniform) if likelihood == "gaussian" else (uniform < mean).to(out.dtype) - mean
    else:
        yield _checked_values(out, targets, likelihood, where) - mean


def _every_output(deviation: Tensor) -> Iterator[Tensor]:
    """σ_j e_j for each output j."""
    refuse_many_outputs(deviation[0].numel())
    flat = deviation.reshape(len(deviation), -1)
    for j in range(flat.shape[1]):
        cotangent = torch.zeros_like(flat)
        cotangent[:, j] = flat[:, j]
        yield cotangent.reshape(deviation.shape)


def _checked_values(out: Tensor, targets: Tensor | None, likelihood: LikelihoodName, where: str) -> Tensor:
    assert targets is not None
    if targets.shape != out.shape:
        raise ValueError(f"{likelihood} targets must have the outputs' shape {tuple(out.shape)}; "
                         f"{where} has {tuple(targets.shape)}")
    values = targets.to(out.dtype)
    if not bool(values.isfinite().all()):
        raise ValueError(f"targets must be finite; {where} has NaN or infinite ones")
    if likelihood == "bernoulli" and bool(((values < 0) | (values > 1)).any()):
        raise ValueError(f"bernoulli targets must lie in [0, 1]; {where} reaches from "
                         f"{float(values.min()):g} to {float(values.max()):g}")
    return values
