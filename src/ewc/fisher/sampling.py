"""Labels drawn from a model's own predictions.

Each draw inverts the cumulative distribution at one uniform number. The numbers are taken in order,
so the labels do not depend on how the samples are split into batches.
"""

import torch
from torch import Tensor

BLOCK = 256  # classes that are summed in a row; the sum of 50,000 would round too much


def draw_uniform(shape: torch.Size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return uniform numbers in (0, 1], on the device and in the type of `like`.

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
