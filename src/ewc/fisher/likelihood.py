"""What a model's outputs say about its labels, as gradients at the outputs.

Every Fisher here is a sum of squares of `(∂output/∂θ)ᵀ v` over samples and over some vectors `v` at
the outputs, the *cotangents*. This file computes them:

- `exact`: vectors with `Σ_k v_k v_kᵀ = E_y[∂log p(y)/∂output ∂log p(y)/∂outputᵀ]`, the expectation
  over all labels;
- `sampled`: `v = ∂log p(y)/∂output` for one label `y` drawn from the model;
- `empirical`: the same for the label in the data.

The positions of a sequence, or several outputs, are independent given the input, and the sample's
log-likelihood is their sum. The cross terms vanish in the expectation, so `exact` takes positions
one by one and is still exact. `count_positions` returns how many labels there are, for losses that
are means over tokens.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ewc.diagnostics import warn
from ewc.fisher.per_sample.graph import VIEWS, Graph, operation
from ewc.parameters import widened

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
    """Check categorical targets: class indices, or probabilities where no label is needed."""
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
        value = log_likelihood(out, None if targets is None else targets.clone())
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


BLOCK = 256  # classes that are summed in a row; the sum of 50,000 would round too much


def draw_uniform(shape: torch.Size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return uniform numbers in (0, 1], on the device and in the dtype of `like`.

    They are drawn on the device of the generator, so that a seed means the same everywhere.
    """
    device = generator.device if generator is not None else torch.device("cpu")
    drawn = torch.rand(shape, generator=generator, device=device, dtype=torch.float32)
    return (1.0 - drawn).to(like.device, like.dtype)


def draw_classes(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return one class per position, drawn from the probabilities in the last dimension.

    With many classes, a block of classes is drawn first and then a class in the block.
    """
    classes = probabilities.shape[-1]
    uniform = draw_uniform(probabilities.shape[:-1], probabilities, generator).unsqueeze(-1)
    if classes <= BLOCK:
        return _invert(probabilities, uniform).squeeze(-1)
    whole = classes - classes % BLOCK
    sums = probabilities[..., :whole].unflatten(-1, (-1, BLOCK)).sum(-1)
    if whole < classes:
        sums = torch.cat([sums, probabilities[..., whole:].sum(-1, keepdim=True)], -1)
    cumulative = sums.cumsum(-1)
    chosen = _invert(sums, uniform)
    below = cumulative.gather(-1, chosen) - sums.gather(-1, chosen)
    share = (uniform * cumulative[..., -1:] - below) / sums.gather(-1, chosen)
    members = chosen * BLOCK + torch.arange(BLOCK, device=chosen.device)
    inside = probabilities.gather(-1, members.clamp_max(classes - 1)) * (members < classes)
    tiny = torch.finfo(share.dtype).tiny
    return (chosen * BLOCK + _invert(inside, share.clamp(tiny, 1.0))).squeeze(-1)


def draw_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return standard normal numbers in the shape of `like`, all of them finite."""
    uniform = draw_uniform(like.shape, like, generator)
    drawn: Tensor = torch.special.ndtri((uniform - 2.0**-25).clamp(max=1 - 2.0**-24))
    return drawn


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the first index at which the cumulative share of `weights` reaches `uniform` > 0.

    The weight at this index is never zero.
    """
    cumulative = weights.cumsum(-1)
    return torch.searchsorted(cumulative, uniform * cumulative[..., -1:])


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

    Categorical outputs have a position for each label, in the dimensions between the first and the
    last; those that are ignored do not count. With a callable likelihood the labels say so: integer
    targets with one label for each position of the outputs. Everywhere else a sample is one
    position, whatever the shape of its output: an image has the same scale in any orientation.
    """
    if callable(likelihood):
        return _count_labels(output, targets)
    if likelihood != "categorical":
        return len(output)
    counted = counted_positions(output, targets, mask, likelihood)
    return prod(output.shape[:1] + output.shape[1:-1]) if counted is None else int(counted.sum())


def _count_labels(output: Tensor, targets: Tensor | None) -> int:
    """Return how many integer labels of positions are not ignored; else the number of samples.

    The classes are in the last dimension of the outputs, or in dimension 1.
    """
    if targets is None or targets.is_floating_point() or targets.is_complex() or output.ndim < 3:
        return len(output)
    if targets.shape not in (output.shape[:-1], output.shape[:1] + output.shape[2:]):
        return len(output)
    return int((targets != IGNORE).sum())


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
