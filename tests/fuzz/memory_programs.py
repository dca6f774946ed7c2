"""Random programs for the memory: what people do with it, in any order, against a dict of tasks.

run(17)     # raises Mismatch with the program, if the memory and the reference come apart
shrink(17)  # and prints the shortest part of that program that still does
"""

import random
import warnings
from typing import Any, NamedTuple

import torch

from ewc.diagnostics import EWCWarning

from .memory_parts import OPTIMIZERS
from .memory_world import World

TASKS = ("A", "B", "C", "D")
NAMES = ("body.weight", "body.bias", "norm.weight", "head.weight", "head.bias", "gain")
# Fused forms on the CPU; not of momentum, where torch fails if some gradients begin as None.
FUSED = ("sgd", "adam", "amsgrad", "adamw")


class Operation(NamedTuple):
    """One call of a method of `World`."""

    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{self.name}({arguments})"


class Mismatch(AssertionError):
    """The memory and the reference came apart, at the last operation of this program."""

    def __init__(self, program: list[Operation], what: str) -> None:
        super().__init__("\n".join([*map(str, program), f"-> {what}"]))
        self.program = program


def run(seed: int) -> None:
    """Execute the program of a seed; raise `Mismatch` if it goes wrong."""
    execute(program(seed))


def shrink(seed: int) -> list[Operation]:
    """Print and return the shortest failing part of a seed's program; raise if it does not fail."""
    found = _failure(program(seed))
    if found is None:
        raise ValueError(f"expected a seed whose program fails, got {seed}")
    while (smaller := _smaller(found)) is not None:
        found = smaller
    print(f"memory program of seed {seed}:\n{found}")
    return found.program


def execute(operations: list[Operation]) -> None:
    """Do one operation after another and compare after each."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", EWCWarning)
        torch.manual_seed(0)
        world = World()
        for done, operation in enumerate(operations, 1):
            try:
                getattr(world, operation.name)(**operation.arguments)
                world.check()
            except Exception as error:
                what = str(error) if type(error) is AssertionError else repr(error)
                raise Mismatch(operations[:done], what) from error


def _failure(operations: list[Operation]) -> Mismatch | None:
    try:
        execute(operations)
    except Mismatch as mismatch:
        return mismatch
    return None


def _smaller(mismatch: Mismatch) -> Mismatch | None:
    """A failure with fewer operations: without a half, a quarter, ..., one of them."""
    operations = mismatch.program
    size = len(operations) // 2
    while size >= 1:
        for start in range(0, len(operations), size):
            rest = operations[:start] + operations[start + size :]
            if (found := _failure(rest)) is not None:
                return found
        size //= 2
    return None


def program(seed: int) -> list[Operation]:
    """A memory, an optimizer, and then anything."""
    rng = random.Random(seed)
    begin = [_memory(rng), _optimizer(rng), _attach(rng), _anchor(rng), _move(rng)]
    if rng.random() < 0.2:
        begin.insert(0, Operation("add_phase", {}))
    weights = list(OPERATIONS.values())
    makers = rng.choices(list(OPERATIONS), weights, k=rng.randint(5, 40))
    return begin + [make(rng) for make in makers]


def _seed(rng: random.Random) -> int:
    return rng.randrange(10**6)


def _size(rng: random.Random) -> float:
    return float(f"{10 ** rng.uniform(-3, 2):.2g}")


def _which(rng: random.Random) -> int:
    return rng.choices([0, 1, 2], [6, 3, 1])[0]


def _slot(rng: random.Random) -> int:
    return rng.choices([0, 1], [3, 1])[0]


def _memory(rng: random.Random) -> Operation:
    options = {
        "strength": rng.choice([0.0, _size(rng), _size(rng), _size(rng)]),
        "decay": rng.choice([1.0, 1.0, 0.9, 0.3, 0.0]),
        "keep_tasks": rng.random() < 0.6,
        "parameters": rng.choice([None, None, "body.*", "!head.*", "*.weight"]),
        "statistics": rng.choice(["hold", "hold", "free"]),
    }
    return Operation("memory", options)


def _optimizer(rng: random.Random) -> Operation:
    kind = rng.choice(list(OPTIMIZERS))
    options: dict[str, Any] = {}
    if kind in FUSED:
        options = rng.choice([{}, {"fused": True}, {"foreach": True}])
    part = rng.choice(["", "", "", "body", "head"])
    return Operation("optimizer", {"slot": _slot(rng), "kind": kind, "part": part, **options})


def _attach(rng: random.Random) -> Operation:
    how = rng.choice(["proximal", "proximal", "gradient"])
    return Operation("attach", {"memory": _which(rng), "slot": _slot(rng), "how": how})


def _detach(rng: random.Random) -> Operation:
    return Operation("detach", {"memory": _which(rng), "slot": _slot(rng)})


def _anchor(rng: random.Random) -> Operation:
    task = rng.choice([None, *TASKS])
    seed = rng.choice([None, _seed(rng), _seed(rng)])
    arguments = {"memory": _which(rng), "task": task, "precision": _size(rng), "seed": seed}
    return Operation("anchor", arguments)


def _consolidate(rng: random.Random) -> Operation:
    task = rng.choice([None, *TASKS])
    return Operation("consolidate", {"memory": _which(rng), "task": task, "seed": _seed(rng)})


def _strength(rng: random.Random) -> Operation:
    value = rng.choice([0.0, _size(rng), _size(rng)])
    return Operation("strength", {"memory": _which(rng), "value": value})


def _forget(rng: random.Random) -> Operation:
    return Operation("forget", {"memory": _which(rng), "task": rng.choice([*TASKS, "task 1"])})


def _leave_out(rng: random.Random) -> Operation:
    return Operation("leave_out", {"memory": _which(rng), "tasks": rng.choices(TASKS, k=2)})


def _let_in(rng: random.Random) -> Operation:
    return Operation("let_in", {"memory": _which(rng)})


def _move(rng: random.Random) -> Operation:
    return Operation("move", {"seed": _seed(rng), "size": rng.choice([1.0, 0.1, 1e-3])})


def _step(rng: random.Random) -> Operation:
    missing = [name for name in NAMES if rng.random() < 0.15]
    return Operation("step", {"slot": _slot(rng), "seed": _seed(rng), "without_gradient": missing})


def _momentum(rng: random.Random) -> Operation:
    value = rng.choice([0.0, 0.3, 0.6, 0.9])
    return Operation("momentum", {"slot": _slot(rng), "value": value})


def _reload(rng: random.Random) -> Operation:
    return Operation("reload", {"slot": _slot(rng)})


def _freeze(rng: random.Random) -> Operation:
    part = rng.choice(["body", "head"])
    return Operation("freeze", {"part": part, "frozen": rng.random() < 0.5})


def _grow(rng: random.Random) -> Operation:
    return Operation("grow", {})


def _replace_head(rng: random.Random) -> Operation:
    return Operation("replace_head", {"seed": _seed(rng), "same_weights": rng.random() < 0.5})


def _shift(rng: random.Random) -> Operation:
    return Operation("shift_buffer", {"seed": _seed(rng)})


def _forward(rng: random.Random) -> Operation:
    return Operation("forward", {"seed": _seed(rng), "training": rng.random() < 0.7})


def _save(rng: random.Random) -> Operation:
    return Operation("save", {"memory": _which(rng)})


def _load(rng: random.Random) -> Operation:
    return Operation("load", {"memory": _which(rng), "fresh": rng.random() < 0.5})


def _copy(rng: random.Random) -> Operation:
    return Operation("copy", {"pickled": rng.random() < 0.3})


OPERATIONS = {
    _memory: 3,
    _optimizer: 2,
    _attach: 7,
    _detach: 1,
    _anchor: 5,
    _consolidate: 1,
    _strength: 2,
    _forget: 2,
    _leave_out: 2,
    _let_in: 1,
    _move: 3,
    _step: 14,
    _momentum: 5,
    _reload: 0.5,
    _freeze: 1,
    _grow: 0.5,
    _replace_head: 0.5,
    _shift: 0.5,
    _forward: 3,
    _save: 1.5,
    _load: 1.5,
    _copy: 1,
}
