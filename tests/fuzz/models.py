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
from typing import Any

import torch
from support.fisher import EXACT, batch_of_one_fisher, the_target
from torch import Tensor, nn

import ewc

from .model_layers import LAYERS, MIXING
from .model_plain_operations import PLAIN_OPERATIONS, WRITTEN
from .model_state import Make, State

TOLERANCE = 1e-9
DRAWN: dict[str, Make] = {**LAYERS, **MIXING, **PLAIN_OPERATIONS}
OPERATIONS: dict[str, Make] = {**DRAWN, "written": WRITTEN}


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


class OperationModule(nn.Module):
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
            step = OperationModule(operation, width)
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
    "pool": 3, "ragged": 3, "attention": 2, "routed": 2,
}  # fmt: skip


def make_program(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    names = [name for name in DRAWN for _ in range(WEIGHTS.get(name, 1))]
    operations = tuple(
        Operation(rng.choice(names), rng.randrange(2**16)) for _ in range(rng.randint(1, 8))
    )
    kind, likelihood = rng.choice(FISHERS)
    # A write after the first layer would be an error of autograd.
    written = [Operation("written", rng.randrange(2**16))] if rng.random() < 0.15 else []
    return Program(
        operations=(*written, Operation("linear", rng.randrange(2**16)), *operations),
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
            output = model(x.clone(), keep)
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
        count = targets.numel() if program.likelihood == "categorical" else len(targets)
        copies = tuple(tensor.clone() for tensor in inputs)
        one = batch_of_one_fisher(model, copies, targets, labels, program.likelihood)
        total = {name: total.get(name, 0) + count * value for name, value in one.items()}
        positions += count
    with warnings.catch_warnings():
        warnings.simplefilter("error", ewc.EWCWarning)
        if any(operation.name in (*MIXING, "written") for operation in program.operations):
            warnings.filterwarnings("ignore", "the model's output for a sample depends")
        try:
            actual = fisher(model, batches, kind=program.kind, likelihood=program.likelihood)
        except Exception as error:
            raise Mismatch(f"{type(error).__name__}: {error}\n{program}") from error
    if not all(torch.equal(a[0][0], b[0][0]) for a, b in zip(batches, data(program), strict=True)):
        raise Mismatch(f"the inputs changed\n{program}")
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


def shrink(program: Program, fisher: Callable[..., Any], compare: Any = compare) -> Mismatch:
    """Take out operations and batches as long as it still fails."""
    failure = _failure(program, fisher, compare)
    assert failure is not None
    again = True
    while again:
        again = False
        for smaller in _smaller(program):
            found = _failure(smaller, fisher, compare)
            if found is not None:
                program, failure, again = smaller, found, True
                break
    return failure


def _failure(program: Program, fisher: Callable[..., Any], compare: Any) -> Mismatch | None:
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
