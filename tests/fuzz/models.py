"""Random models for the Fisher: programs of operations on (samples, positions, features).

A program is a list of operation names with a number each; every operation applies to any state or
does nothing, so that a failing program stays a program when operations are taken out of it. Axes
(the samples B, the positions T, the halves P of a pair) are permuted and folded in every order on
the way; the features are always the last dimension. The reference is the batch-of-one loop.
"""

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from support.reference import EXACT, batch_of_one_fisher, the_target
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ewc

TOLERANCE = 1e-9
Dims = tuple[tuple[str, ...], ...]


class Mismatch(AssertionError):
    """A Fisher that differs from the loop; says the program."""


@dataclass(frozen=True)
class Operation:
    """An operation and a number that its choices are made of."""

    name: str
    number: int


@dataclass(frozen=True)
class Program:
    """A model, the sizes of its batches as (samples, positions, padded), and a Fisher."""

    operations: tuple[Operation, ...]
    batches: tuple[tuple[int, int, bool], ...]
    kind: str
    likelihood: str
    seed: int

    def __str__(self) -> str:
        steps = "\n".join(f"  {op.name}({op.number})" for op in self.operations)
        sizes = ", ".join(f"{b}x{t}{' padded' if pad else ''}" for b, t, pad in self.batches)
        return f"{self.kind} {self.likelihood}, batches {sizes}, seed {self.seed}\n{steps}"


@dataclass
class State:
    """A tensor on its way: what its dimensions hold, but for the last, which has the features."""

    x: Tensor
    dims: Dims
    sizes: dict[str, int]
    keep: Tensor  # (samples, positions): true where there is a token
    inputs: Tensor

    def shaped(self, x: Tensor, dims: Dims) -> "State":
        return replace(self, x=x, dims=dims)

    def index(self, axis: str) -> int | None:
        """The dimension that holds this axis and nothing else."""
        return self.dims.index((axis,)) if (axis,) in self.dims else None

    def unfolded(self, *order: str) -> Tensor:
        """The tensor with one dimension per axis, in this order first."""
        axes = [axis for dim in self.dims for axis in dim]
        x = self.x.reshape(*(self.sizes[axis] for axis in axes), self.x.shape[-1])
        rest = [axis for axis in axes if axis not in order]
        return x.permute(*(axes.index(axis) for axis in [*order, *rest]), len(axes))


Run = Callable[[State], State]
Make = Callable[[random.Random, int], tuple[nn.Module, Callable[[nn.Module, State], State], int]]


class Step(nn.Module):
    """One operation with its parameters."""

    def __init__(self, operation: Operation, width: int) -> None:
        super().__init__()
        rng = random.Random(operation.number)
        self.parts, self.run, self.width = OPERATIONS[operation.name](rng, width)


class Model(nn.Module):
    """The operations in a row, then one dimension per axis, samples first, and a last layer."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        torch.manual_seed(program.seed)
        width = WIDTH
        self.steps = nn.ModuleList()
        for operation in program.operations:
            step = Step(operation, width)
            width = step.width
            self.steps.append(step)
        self.head = nn.Linear(width, 3)
        self.pool = random.Random(program.seed).choice(["keep", "sum", "mean", "max", "first"])

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        sizes = {"B": x.shape[0], "T": x.shape[1], "P": 2}
        state = State(x, (("B",), ("T",)), sizes, keep, x)
        for step in self.steps:
            state = step.run(step.parts, state)
        axes = {axis for dim in state.dims for axis in dim}
        x = state.unfolded("B", "P") if "P" in axes else state.unfolded("B")
        if "P" in axes:
            x = (x[:, 0] - x[:, 1]).tanh() * x[:, 1]
        if x.ndim == 3 and self.pool != "keep":
            x = {
                "sum": lambda: x.sum(1),
                "mean": lambda: x.mean(1),
                "max": lambda: x.amax(1),
                "first": lambda: x[:, 0],
            }[self.pool]()
        return self.head(x)


WIDTH = 4


def _featurewise(make: Callable[[int], nn.Module]) -> Make:
    """A module that acts on the last dimension only."""
    return lambda rng, width: (
        make(width), lambda m, s: s.shaped(m(s.x), s.dims), width
    )  # fmt: skip


def _linear(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
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


def _tied(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
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


def _bare(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
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


def _attention(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
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


def _convolution(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
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


def _recurrent(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
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


def _plain(run: Callable[[random.Random, State], State]) -> Make:
    """An operation without parameters; its choices depend on its number only."""

    def make(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
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
    """Positions rolled, turned round, or gated by their neighbours."""
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


def _ragged(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
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


def _sorted(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
    """Samples sorted by their data, through a layer, and back."""
    layer = nn.Linear(width, width)

    def run(m: nn.Module, s: State) -> State:
        if s.dims[0] != ("B",):
            return s
        order = s.inputs[:, 0, 0].argsort()
        return s.shaped(m(s.x[order])[order.argsort()].tanh(), s.dims)

    return layer, run, width


def _residual(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
    layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5), nn.GELU(), nn.Linear(5, width))
    return layers, lambda m, s: s.shaped(s.x + m(s.x), s.dims), width


def _gated(rng: random.Random, width: int) -> tuple[nn.Module, Callable[..., State], int]:
    layer = nn.Linear(width, 2 * width)

    def run(m: nn.Module, s: State) -> State:
        value, gate = m(s.x).chunk(2, -1) if rng_bit else m(s.x).split([width, width], -1)
        return s.shaped(value * gate.sigmoid(), s.dims)

    rng_bit = rng.random() < 0.5
    return layer, run, width


OPERATIONS: dict[str, Make] = {
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
MAX_LENGTH = 8
# The exact loop over all patterns of a bernoulli likelihood would take too long.
FISHERS = [
    ("empirical", "categorical"),
    ("empirical", "categorical"),
    ("empirical", "bernoulli"),
    ("empirical", "gaussian"),
    ("exact", "categorical"),
    ("exact", "gaussian"),
]
# Shapes, pairs and rows that the data assigns make most of the trouble.
WEIGHTS = {
    "linear": 5, "permute": 4, "fold": 4, "unfold": 3, "activation": 3, "bare": 3, "pair": 4,
    "pool": 3, "ragged": 3, "attention": 2,
}  # fmt: skip


def make_program(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    names = [name for name in OPERATIONS for _ in range(WEIGHTS.get(name, 1))]
    operations = tuple(
        Operation(rng.choice(names), rng.randrange(2**16)) for _ in range(rng.randint(1, 8))
    )
    kind, likelihood = rng.choice(FISHERS)
    return Program(
        operations=(Operation("linear", rng.randrange(2**16)), *operations),
        batches=_batch_sizes(rng),
        kind=kind,
        likelihood=likelihood,
        seed=seed,
    )


def _batch_sizes(rng: random.Random) -> tuple[tuple[int, int, bool], ...]:
    """Often alike, so that a later batch meets what was learned from the first; which is often
    plainer than the others, with one position or without padding.
    """
    samples, length = rng.choice([1, 2, 3, 4, 4, 5, 6, 8, 9]), rng.randint(1, 7)
    batches = []
    for n in range(rng.choice([1, 1, 2, 3, 4])):
        if rng.random() < 0.4:
            samples = rng.choice([1, 2, 3, 4, 4, 5, 6, 8, 9])
        first = n == 0
        here = 1 if first and rng.random() < 0.25 else length
        batches.append((samples, here, rng.random() < (0.2 if first else 0.7)))
        if rng.random() < 0.4:
            length = rng.randint(1, 7)
    return tuple(batches)


def data(program: Program) -> list[tuple[tuple[Tensor, Tensor], Tensor]]:
    """The batches of a program: inputs, the mask of kept tokens, and targets."""
    generator = torch.Generator().manual_seed(program.seed)
    model = Model(program).double().eval()
    found = []
    for samples, length, padded in program.batches:
        x = torch.randn(samples, length, WIDTH, generator=generator, dtype=torch.float64)
        keep = torch.ones(samples, length, dtype=torch.bool)
        if padded:
            lengths = torch.randint(1, length + 1, (samples, 1), generator=generator)
            keep = torch.arange(length) < lengths
        with torch.no_grad():
            output = model(x, keep)
        if program.likelihood == "categorical":
            targets = torch.randint(output.shape[-1], output.shape[:-1], generator=generator)
        else:
            targets = torch.rand(output.shape, generator=generator, dtype=torch.float64)
        found.append(((x, keep), targets))
    return found


def compare(program: Program, fisher: Callable[..., dict[str, Tensor]]) -> None:
    """Raise `Mismatch` if `fisher` is not the loop's."""
    batches = data(program)
    model = Model(program).double().eval()
    labels = the_target if program.kind == "empirical" else EXACT[program.likelihood]
    total: dict[str, Tensor] = {}
    positions = 0
    for inputs, targets in batches:
        count = targets.numel() if program.likelihood == "categorical" else targets[..., 0].numel()
        one = batch_of_one_fisher(model, inputs, targets, labels, program.likelihood)
        total = {name: total.get(name, 0) + count * value for name, value in one.items()}
        positions += count
    with warnings.catch_warnings():
        warnings.simplefilter("error", ewc.EWCWarning)
        try:
            actual = fisher(model, batches, kind=program.kind, likelihood=program.likelihood)
        except Exception as error:
            raise Mismatch(f"{type(error).__name__}: {error}\n{program}") from error
    largest = max(float(value.max()) for value in total.values()) / positions
    for name, value in total.items():
        expected = value / positions
        error = float((actual[name] - expected).abs().max())
        scale = max(float(expected.max()), 1e-6 * largest)
        if not error <= TOLERANCE * scale:
            raise Mismatch(f"{name} is off by {error / scale:.1e}\n{program}")


def run(seed: int, fisher: Callable[..., dict[str, Tensor]] = ewc.fisher_diagonal) -> None:
    """Check the program of a seed; raise `Mismatch` with the smallest program that still fails."""
    program = make_program(seed)
    try:
        compare(program, fisher)
    except Mismatch:
        raise shrink(program, fisher) from None


def shrink(program: Program, fisher: Callable[..., dict[str, Tensor]]) -> Mismatch:
    """Take out operations and batches as long as it still fails."""
    failure = _failure(program, fisher)
    assert failure is not None
    again = True
    while again:
        again = False
        for smaller in _smaller(program):
            found = _failure(smaller, fisher)
            if found is not None:
                program, failure, again = smaller, found, True
                break
    return failure


def _failure(program: Program, fisher: Callable[..., dict[str, Tensor]]) -> Mismatch | None:
    try:
        compare(program, fisher)
    except Mismatch as mismatch:
        return mismatch
    except Exception:  # not a program any more
        return None
    return None


def _smaller(program: Program) -> list[Program]:
    def without(items: tuple, i: int) -> tuple:
        return items[:i] + items[i + 1 :]

    fewer = [
        replace(program, operations=without(program.operations, i))
        for i in range(len(program.operations))
    ]
    if len(program.batches) > 1:
        fewer += [
            replace(program, batches=without(program.batches, i))
            for i in range(len(program.batches))
        ]
    return fewer
