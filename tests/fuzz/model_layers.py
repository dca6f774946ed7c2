"""Operations of random models that have parameters."""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .model_state import Make, Run, State

MAX_LENGTH = 8  # at least the most positions of a batch


def _featurewise(make: Callable[[int], nn.Module]) -> Make:
    """A module that acts on the last dimension only."""
    return lambda rng, width: (
        make(width), lambda m, s: s.shaped(m(s.x), s.dims), width
    )  # fmt: skip


def _linear(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    out = rng.choice([4, 6, 8])  # the norm of two features is ±1: all rounding
    layer = nn.Linear(width, out, bias=rng.random() < 0.7)
    style = rng.choice(["module", "matmul", "einsum", "rows"])

    def run(m: nn.Module, s: State) -> State:
        if style == "module":
            y = m(s.x)
        elif style == "matmul":
            y = s.x @ m.weight.t()
        elif style == "einsum":
            y = torch.einsum("...i,oi->...o", s.x, m.weight)
        else:
            y = m(s.x.reshape(-1, width)).reshape(*s.x.shape[:-1], out)
        return s.shaped(y, s.dims)

    return layer, run, out


def _tied(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    """One weight used several times: as it is, transposed, cut, scaled, reshaped."""
    layer = nn.Linear(width, width)
    way = rng.choice(["twice", "transposed", "cut", "scaled", "reshaped", "gain"])

    def run(m: nn.Module, s: State) -> State:
        y = m(s.x).tanh()
        w = m.weight
        z = {
            "twice": lambda: m(y),
            "transposed": lambda: F.linear(y, w.t()),
            "cut": lambda: torch.cat(
                [F.linear(y, w[: width // 2]), F.linear(y, w[width // 2 :])], -1
            ),
            "scaled": lambda: F.linear(y, 2 * w, m.bias),
            "reshaped": lambda: F.linear(y, w.t().reshape(width, width)),
            "gain": lambda: y * m.bias + w[0],
        }[way]()
        return s.shaped(z, s.dims)

    return layer, run, width


def _bare(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    """Gains and shifts, per feature or per position, shared or looked up."""
    parts = nn.ParameterDict(
        {
            "gain": nn.Parameter(torch.randn(width)),
            "shift": nn.Parameter(torch.randn(1, 1, width)),
            "places": nn.Parameter(torch.randn(MAX_LENGTH, width)),
        }
    )
    way = rng.choice(["gain", "shift", "places", "lookup", "own", "expand", "alpha"])

    def run(m: nn.Module, s: State) -> State:
        if way == "gain":
            return s.shaped(s.x * m["gain"], s.dims)
        if way == "alpha":
            return s.shaped(torch.add(s.x, m["gain"], alpha=s.sizes["T"]), s.dims)
        if way == "shift" or s.dims != (("B",), ("T",)):
            return s.shaped(s.x + m["shift"].view(-1), s.dims)
        length = s.sizes["T"]
        if way == "places":
            shift = m["places"][:length]
        elif way == "lookup":
            shift = F.embedding(torch.arange(length)[None], m["places"])
        elif way == "own":
            kept = s.keep.long()
            order = torch.arange(length)[None] if bool(s.keep.all()) else kept.cumsum(1) - kept
            shift = F.embedding(order, m["places"])
        else:
            shift = m["places"][None, :length].expand(len(s.x), -1, -1) * s.inputs[..., :1]
        return s.shaped(s.x + shift, s.dims)

    return parts, run, width


def _attention(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    batch_first, way = rng.random() < 0.5, rng.choice(["module", "encoder", "functional", "masked"])
    if way == "encoder":
        part: nn.Module = nn.TransformerEncoderLayer(width, 2, 5, 0.0, batch_first=batch_first)
    elif way == "functional":
        part = nn.Linear(width, 3 * width)
    else:
        part = nn.MultiheadAttention(width, 2, batch_first=batch_first)

    def attend(m: nn.Module, x: Tensor, padding: Tensor | None) -> Tensor:
        if way == "functional":
            q, k, v = m(x).chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v)
        if not batch_first:
            x = x.transpose(0, 1).contiguous()
        y = m(x) if way == "encoder" else m(x, x, x, key_padding_mask=padding)[0]
        return y if batch_first else y.transpose(0, 1)

    def run(m: nn.Module, s: State) -> State:
        at = s.index("T")
        if at is None:
            return s
        x = s.x.movedim(at, -2)
        padding = ~s.keep if way == "masked" and s.dims == (("B",), ("T",)) else None
        y = attend(m, x.reshape(-1, *x.shape[-2:]), padding)
        return s.shaped(y.reshape(x.shape).movedim(-2, at), s.dims)

    return part, run, width


def _convolution(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    groups = rng.choice([1, 2])
    layers = nn.Sequential(nn.Conv1d(width, width, 3, padding=1, groups=groups))
    norm = rng.choice([None, "group", "batch"])
    if norm:
        layers.append(nn.GroupNorm(width // 2, width) if norm == "group" else nn.BatchNorm1d(width))

    def run(m: nn.Module, s: State) -> State:
        at = s.index("T")
        if at is None:
            return s
        x = s.x.movedim(at, -1)
        y = m(x.reshape(-1, *x.shape[-2:]))
        return s.shaped(y.reshape(x.shape).movedim(-1, at), s.dims)

    return layers, run, width


def _recurrent(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    kind, batch_first = rng.choice([nn.GRU, nn.LSTM, nn.RNN]), rng.random() < 0.5
    layer = kind(width, width, batch_first=batch_first)

    def run(m: nn.Module, s: State) -> State:
        at = s.index("T")
        if at is None:
            return s
        x = s.x.movedim(at, -2)
        rows = x.reshape(-1, *x.shape[-2:])
        y = m(rows)[0] if batch_first else m(rows.transpose(0, 1))[0].transpose(0, 1)
        return s.shaped(y.reshape(x.shape).movedim(-2, at), s.dims)

    return layer, run, width


def _ragged(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    """Only the tokens that are kept go through a layer; then they are pooled, or put back."""
    layer = nn.Linear(width, width)
    way = rng.choice(["matrix", "sparse", "mask", "segment", "bag", "add", "put"])

    def run(m: nn.Module, s: State) -> State:
        if s.dims != (("B",), ("T",)):
            return s
        lengths = s.keep.sum(1)
        rows = m(s.x[s.keep]).tanh()
        if way == "put":
            return s.shaped(torch.zeros_like(s.x).index_put((s.keep,), rows), s.dims)
        owner = torch.arange(len(s.x)).repeat_interleave(lengths)
        matrix = F.one_hot(owner, len(s.x)).T.to(rows.dtype)
        starts = F.pad(lengths.cumsum(0), (1, 0))[:-1]
        x = {
            "matrix": lambda: matrix @ rows,
            "sparse": lambda: torch.sparse.mm(matrix.to_sparse(), rows),
            "mask": lambda: (matrix.unsqueeze(-1) * rows).sum(1),
            "segment": lambda: torch.segment_reduce(rows, "sum", lengths=lengths),
            "bag": lambda: F.embedding_bag(torch.arange(len(rows)), rows, starts, mode="sum"),
            "add": lambda: rows.new_zeros(len(s.x), width).index_add(0, owner, rows),
        }[way]()
        return s.shaped(x, (("B",),))

    return layer, run, width


def _sorted(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    """Samples sorted by their data, through a layer, and back."""
    layer = nn.Linear(width, width)

    def run(m: nn.Module, s: State) -> State:
        if s.dims[0] != ("B",):
            return s
        order = s.inputs[:, 0, 0].argsort()
        return s.shaped(m(s.x[order])[order.argsort()].tanh(), s.dims)

    return layer, run, width


def _routed(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    """Experts that take so many samples or tokens of a batch, and no more."""
    parts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
    parts.append(nn.Linear(width, 3))
    order, tokens = rng.choice(["first", "sorted", "topk", "cumsum"]), rng.random() < 0.5

    def run(m: nn.Module, s: State) -> State:
        if s.dims[0] != ("B",):
            return s
        x = s.x.reshape(-1, width) if tokens else s.x
        score, expert = m[3](x.reshape(len(x), -1, width).mean(1)).softmax(-1).max(-1)
        places, y = max(1, len(x) // 3), x
        for number in range(3):
            here = expert == number
            if order == "cumsum":
                taken = here & (here.long().cumsum(0) <= places)
                gate = (score * taken).reshape(-1, *[1] * (x.ndim - 1))
                y = y + m[number](x) * gate
                continue
            rows = here.nonzero()[:, 0]
            if order == "sorted":
                rows = rows[score[rows].argsort(descending=True)]
            elif order == "topk":
                rows = rows[score[rows].topk(min(places, len(rows))).indices]
            rows = rows[:places]
            gate = score[rows].reshape(-1, *[1] * (x.ndim - 1))
            y = y.index_add(0, rows, m[number](x[rows]) * gate)
        return s.shaped(y.reshape(s.x.shape).tanh(), s.dims)

    return parts, run, width


def _early_exit(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    """A layer that is left out where all, or most, of a batch are sure without it."""
    layer = nn.Linear(width, width)
    way, limit = rng.choice(["all", "min", "mean", "list"]), rng.uniform(0.3, 0.9)

    def run(m: nn.Module, s: State) -> State:
        sure = s.x.softmax(-1).amax(-1)
        leave = {
            "all": lambda: bool((sure > limit).all()),
            "min": lambda: sure.min().item() > limit,
            "mean": lambda: float((sure > limit).double().mean()) > 0.6,
            "list": lambda: all(value > limit for value in sure.flatten().tolist()),
        }[way]()
        return s if leave else s.shaped(s.x + m(s.x).tanh(), s.dims)

    return layer, run, width


def _minimum_to_maximum(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    """Values scaled by the extremes of the batch."""
    layer, over_all = nn.Linear(width, width), rng.random() < 0.5

    def run(m: nn.Module, s: State) -> State:
        x = m(s.x)
        dims = tuple(range(x.ndim - (not over_all)))  # of each feature, or of all values
        low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
        return s.shaped(((x - low) / (high - low + 0.5)).tanh(), s.dims)

    return layer, run, width


def _from_others(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    """Rows that are taken from others, or summed with similar ones, where they are large."""
    layer, limit = nn.Linear(width, width), rng.uniform(0.5, 1.5)
    way = rng.choice(["rolled", "flipped", "indexed", "shifted", "summed"])

    def run(m: nn.Module, s: State) -> State:
        rows = m(s.x).tanh().flatten(1)
        others = {
            "rolled": lambda: rows.roll(1, 0),
            "flipped": lambda: rows.flip(0),
            "indexed": lambda: rows[torch.arange(len(rows)).flip(0)],
            "shifted": lambda: nn.functional.pad(rows, (0, 0, 1, 0))[:-1],
            "summed": lambda: (rows @ rows.T > 0.5).to(rows) @ rows,
        }[way]()
        large = s.x.flatten(1).amax(1, keepdim=True) > limit
        return s.shaped(torch.where(large, others, rows).reshape(s.x.shape), s.dims)

    return layer, run, width


def _residual(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5), nn.GELU(), nn.Linear(5, width))
    return layers, lambda m, s: s.shaped(s.x + m(s.x), s.dims), width


def _gated(rng: random.Random, width: int) -> tuple[nn.Module, Run, int]:
    layer = nn.Linear(width, 2 * width)

    def run(m: nn.Module, s: State) -> State:
        value, gate = m(s.x).chunk(2, -1) if rng_bit else m(s.x).split([width, width], -1)
        return s.shaped(value * gate.sigmoid(), s.dims)

    rng_bit = rng.random() < 0.5
    return layer, run, width


LAYERS: dict[str, Make] = {
    "linear": _linear,
    "tied": _tied,
    "bare": _bare,
    "attention": _attention,
    "convolution": _convolution,
    "recurrent": _recurrent,
    "ragged": _ragged,
    "sorted": _sorted,
    "residual": _residual,
    "gated": _gated,
    "layer_norm": _featurewise(nn.LayerNorm),
    "rms_norm": _featurewise(nn.RMSNorm),
    "prelu": _featurewise(lambda width: nn.PReLU()),
}
# Samples depend on others in some batches; the Fisher is then as if each came alone.
MIXING: dict[str, Make] = {
    "routed": _routed,
    "early_exit": _early_exit,
    "minimum_to_maximum": _minimum_to_maximum,
    "from_others": _from_others,
}
