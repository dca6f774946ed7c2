"""Operations of random models without parameters: shapes, pairs, pools, activations."""

import random
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .model_state import Make, Run, State


def _plain(run: Callable[[random.Random, State], State]) -> Make:
    """An operation without parameters; its choices depend on its number only."""

    def make(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
        number = rng.random()
        return nn.Identity(), lambda m, s: run(random.Random(number), s), width

    return make


def _permute(rng: random.Random, s: State) -> State:
    order = list(range(len(s.dims)))
    rng.shuffle(order)
    x = s.x.permute(*order, len(order))
    return s.shaped(x.contiguous() if rng.random() < 0.5 else x, tuple(s.dims[i] for i in order))


def _fold(rng: random.Random, s: State) -> State:
    if len(s.dims) < 2:
        return s
    at = rng.randrange(len(s.dims) - 1)
    dims = (*s.dims[:at], s.dims[at] + s.dims[at + 1], *s.dims[at + 2 :])
    return s.shaped(s.x.flatten(at, at + 1), dims)


def _unfold(rng: random.Random, s: State) -> State:
    folded = [i for i, dim in enumerate(s.dims) if len(dim) > 1]
    if not folded:
        return s
    at = rng.choice(folded)
    cut = rng.randrange(1, len(s.dims[at]))
    first, second = s.dims[at][:cut], s.dims[at][cut:]
    x = s.x.unflatten(at, (prod(s.sizes[a] for a in first), prod(s.sizes[a] for a in second)))
    return s.shaped(x, (*s.dims[:at], first, second, *s.dims[at + 1 :]))


def _pair(rng: random.Random, s: State) -> State:
    """Both halves of a pair in one tensor, one after the other or side by side."""
    if any("P" in dim for dim in s.dims):
        return s
    halves = [s.x, s.x.flip(-1) * 0.5]
    if rng.random() < 0.5:
        return s.shaped(torch.cat(halves), (("P", *s.dims[0]), *s.dims[1:]))
    at = rng.randrange(len(s.dims) + 1)
    return s.shaped(torch.stack(halves, at), (*s.dims[:at], ("P",), *s.dims[at:]))


def _pool(rng: random.Random, s: State) -> State:
    at = s.index("T")
    if at is None or len(s.dims) < 2:
        return s
    way = rng.choice(["mean", "sum", "max", "first", "last", "softmax", "norm"])
    x = {
        "mean": lambda: s.x.mean(at),
        "sum": lambda: s.x.sum(at),
        "max": lambda: s.x.max(at).values,
        "first": lambda: s.x.select(at, 0),
        "last": lambda: s.x.select(at, -1),
        "softmax": lambda: (s.x.softmax(at) * s.x).sum(at),
        "norm": lambda: F.normalize(s.x, dim=-1).sum(at),
    }[way]()
    return s.shaped(x, tuple(dim for dim in s.dims if dim != ("T",)))


def _activation(rng: random.Random, s: State) -> State:
    functions = [
        torch.tanh, F.gelu, F.silu, torch.sigmoid, F.leaky_relu, lambda x: x.clone().relu_(),
        lambda x: x.clone().mul_(0.5), lambda x: x.softmax(-1), lambda x: x - x.mean(-1, True),
        lambda x: torch.where(x > 0, x, 0.5 * x), lambda x: x.masked_fill(x < -1, -1.0),
    ]  # fmt: skip
    return s.shaped(rng.choice(functions)(s.x), s.dims)


def _overwritten(rng: random.Random, s: State) -> State:
    """A part of a tensor written in place."""
    y = s.x.clone()
    y[..., :2] = y[..., :2].tanh() * 2
    y[..., 1] += 0.5 * s.x[..., 0]
    return s.shaped(y, s.dims)


def _within(rng: random.Random, s: State) -> State:
    """Positions rolled, turned round, or gated by their neighbors."""
    at = s.index("T")
    if at is None:
        return s
    way = rng.choice(["roll", "flip", "cumsum", "pad", "gate"])
    x = {
        "roll": lambda: s.x + s.x.roll(1, at),
        "flip": lambda: s.x.flip(at) * s.x,
        "cumsum": lambda: s.x.cumsum(at) / s.sizes["T"],
        "pad": lambda: F.pad(s.x.movedim(at, -1), (1, 0))[..., :-1].movedim(-1, at) + s.x,
        "gate": lambda: s.x * s.x.mean(at, keepdim=True).sigmoid(),
    }[way]()
    return s.shaped(x, s.dims)


def _written(rng: random.Random, s: State) -> State:
    """The inputs written to, as the first thing that a model does."""
    way = rng.choice(["halved", "clamped", "hidden", "large samples", "any large"])
    if way == "halved":
        s.inputs /= 2
    elif way == "clamped":
        s.inputs.clamp_(-1, 1)
    elif way == "hidden":
        s.inputs[..., 0] = 0
    elif way == "large samples":
        s.inputs[s.inputs.abs().amax((1, 2)) > 2] *= 0.5
    elif s.inputs.abs().max() > 2:  # of any sample
        s.inputs.tanh_()  # not a factor, which norms may hide from the outputs
    return s


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return 2 * grad


def _opaque(rng: random.Random, s: State) -> State:
    """Through a function of the user's own, a checkpoint, or a loop over the rows."""
    way = rng.choice(["function", "checkpoint", "loop", "index"])
    x = {
        "function": lambda: _Doubled.apply(s.x),
        "checkpoint": lambda: checkpoint(lambda t: t.tanh() * 2, s.x, use_reentrant=False),
        "loop": lambda: torch.stack([row.tanh() for row in s.x]),
        "index": lambda: s.x[torch.arange(len(s.x))],
    }[way]()
    return s.shaped(x, s.dims)


WRITTEN = _plain(_written)
PLAIN_OPERATIONS: dict[str, Make] = {
    "permute": _plain(_permute),
    "fold": _plain(_fold),
    "unfold": _plain(_unfold),
    "pair": _plain(_pair),
    "pool": _plain(_pool),
    "activation": _plain(_activation),
    "overwritten": _plain(_overwritten),
    "within": _plain(_within),
    "opaque": _plain(_opaque),
}
