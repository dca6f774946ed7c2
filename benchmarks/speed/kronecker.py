"""What Kronecker factors cost beside the diagonal, and beside no memory at all.

A training step with the pull, whose cost must not depend on the number of tasks: MLP
784-1000-1000-10 with SGD and with Adam, and a GPT-2 shape of 26 M parameters with AdamW. A pull on
layers comes every K steps, so a workload has K steps, or 2 K, and exactly one pull per K. The
factors of 256 sequences, as a multiple of a plain pass. And the bytes per parameter that a memory
keeps, without the weights.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer

from benchmarks.measure import ResultRow, ResultTable, Workload, best_seconds, ratios
from benchmarks.speed.fisher import our_fisher, plain_pass
from benchmarks.speed.models import Transformer, mlp_batch, transformer_batch
from ewc.fisher import fisher_kronecker
from ewc.memory import EWC, Curvature
from ewc.pull.kronecker import steps_between_pulls

TASKS = (1, 10, 100)
UNITS, BATCH_SIZE, SAMPLES, ROUNDS = 1000, 128, 512, 4
WIDTH, SEQUENCES, TRAINING_ROUNDS = 384, 8, 3
FACTOR_SEQUENCES, FACTOR_ROUNDS = 256, 2
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD with momentum 0.9": lambda model: SGD(model.parameters(), lr=1e-3, momentum=0.9),
    "Adam": lambda model: Adam(model.parameters(), lr=1e-4),
}
STRENGTHS: dict[Curvature, float] = {"diagonal": 100.0, "kronecker": 10.0}


def tables(*, ours_only: bool) -> Iterator[ResultTable]:
    states = {curvature: states_after_tasks(curvature) for curvature in STRENGTHS}
    between = steps_between(mlp(), "kronecker")
    for name, optimizer in OPTIMIZERS.items():
        yield ResultTable(
            f"One training step, MLP 784-{UNITS}-{UNITS}-10, batch {BATCH_SIZE}, {name}",
            mlp_rows(states, optimizer, between),
            (f"A pull on layers with factors every {between} steps.",),
        )
    del states
    model = transformer()
    size = sum(p.numel() for p in model.parameters())
    shape = f"GPT-2 shape of {size / 1e6:.1f} M parameters"
    fisher_rows = factor_rows(model)
    yield ResultTable(
        f"Factors of {FACTOR_SEQUENCES} sequences of 128 tokens, {shape}", fisher_rows
    )
    rows: list[ResultRow] = []
    workloads: dict[str, tuple[Workload, int]] = {"plain": (transformer_step(transformer()), 1)}
    for curvature in STRENGTHS:
        model = transformer()
        memory = remember(model, curvature, [transformer_batch(2)], "sampled")
        workloads[curvature] = attached_step(model, memory)
        rows += memory_rows(model, memory)
    between = max(steps for _, steps in workloads.values())
    yield ResultTable(
        f"A training step of {SEQUENCES}x128 tokens, {shape}, AdamW fused",
        timed({(name, 1): pair for name, pair in workloads.items()}, TRAINING_ROUNDS),
        (f"A pull on layers with factors every {between} steps.",),
    )
    yield ResultTable(f"What a memory keeps beside the weights, {shape}", rows)


def mlp() -> nn.Module:
    """Create the network of a hundred permuted tasks, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(784, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU()),
        nn.Linear(UNITS, 10),
    )


def transformer() -> Transformer:
    torch.manual_seed(0)
    return Transformer(WIDTH)


def remember(
    model: nn.Module, curvature: Curvature, batches: list[tuple[Tensor, Tensor]], kind: str
) -> EWC:
    """Return a memory of one task."""
    memory = EWC(model, strength=STRENGTHS[curvature], curvature=curvature)
    memory.consolidate(batches, kind="sampled" if kind == "sampled" else "exact")
    return memory


def states_after_tasks(curvature: Curvature) -> dict[int, dict[str, Tensor]]:
    """Return the memory after so many tasks, all of the same images, as states."""
    model = mlp()
    memory = EWC(model, strength=STRENGTHS[curvature], curvature=curvature)
    batches, found = [mlp_batch(SAMPLES)], {}
    fisher = memory.consolidate(batches, kind="sampled")
    for task in range(1, max(TASKS) + 1):
        if task > 1:
            memory.consolidate(fisher)
        if task in TASKS:
            found[task] = memory.state_dict()
    return found


def steps_between(model: nn.Module, curvature: Curvature) -> int:
    """Return K of a model; 1 for a memory without layers."""
    memory = remember(model, curvature, [mlp_batch(SAMPLES)], "sampled")
    return steps_of(memory)


def steps_of(memory: EWC) -> int:
    """Return how many steps of the optimizer come between two pulls on layers."""
    return steps_between_pulls(memory._wells.active.layers)


def mlp_rows(
    states: dict[Curvature, dict[int, dict[str, Tensor]]],
    make_optimizer: Callable[[nn.Module], Optimizer],
    steps: int,
) -> list[ResultRow]:
    """Time training steps without a memory and with those in the states.

    Args:
        states: of each memory, by curvature and number of tasks.
        make_optimizer: makes the optimizer of a model.
        steps: how many steps a workload has.
    """
    workloads = {("plain", 0): (repeated(mlp_step(mlp(), make_optimizer, None), steps), steps)}
    for curvature, by_tasks in states.items():
        for tasks, state in by_tasks.items():
            model = mlp()
            memory = EWC(model, strength=STRENGTHS[curvature], curvature=curvature)
            memory.load_state_dict(state)
            step = mlp_step(model, make_optimizer, memory)
            workloads[curvature, tasks] = repeated(step, steps), steps
    return timed(workloads, ROUNDS)


def mlp_step(
    model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer], memory: EWC | None
) -> Workload:
    """Return a training step, with a pull or without."""
    optimizer, (inputs, targets) = make_optimizer(model), mlp_batch(BATCH_SIZE)
    if memory is not None:
        memory.attach(optimizer)

    def run() -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return run


def transformer_step(model: nn.Module, memory: EWC | None = None) -> Workload:
    """Return a training step of the GPT-2 shape, with a pull or without."""
    optimizer = AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, targets = transformer_batch(SEQUENCES)
    if memory is not None:
        memory.attach(optimizer)

    def run() -> None:
        optimizer.zero_grad()
        cross_entropy(model(tokens).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()

    return run


def attached_step(model: nn.Module, memory: EWC) -> tuple[Workload, int]:
    """Return a workload of K training steps, and K."""
    steps = steps_of(memory)
    return repeated(transformer_step(model, memory), steps), steps


def repeated(step: Workload, steps: int) -> Workload:
    """Return a workload of several steps."""

    def run() -> None:
        for _ in range(steps):
            step()

    return run


def timed(workloads: dict[tuple[str, int], tuple[Workload, int]], rounds: int) -> list[ResultRow]:
    """Time workloads of several steps each, by method and number of tasks; the first is plain."""
    best = best_seconds({str(key): workload for key, (workload, _) in workloads.items()}, rounds)
    each = {key: best[str(key)] / steps for key, (_, steps) in workloads.items()}
    plain = next(iter(each.values()))
    return [
        {
            "method": key[0],
            "tasks": key[1],
            "milliseconds": 1000 * time,
            "multiple": time / plain,
        }
        for key, time in each.items()
    ]


def factor_rows(model: nn.Module) -> list[ResultRow]:
    """Time the factors and the diagonal in batches of 8, next to a plain pass over the same."""
    batches = [transformer_batch(SEQUENCES) for _ in range(FACTOR_SEQUENCES // SEQUENCES)]
    workloads: dict[str, Workload] = {
        "plain": lambda: plain_pass(model, batches),
        "kronecker sampled": partial(fisher_kronecker, model, batches, kind="sampled"),
        "diagonal sampled": partial(our_fisher(model, "sampled"), batches),
    }
    best = best_seconds(workloads, FACTOR_ROUNDS)
    multiples = ratios(best)
    return [
        {"method": name, "milliseconds": 1000 * best[name], "multiple": multiples[name]}
        for name in best
    ]


def memory_rows(model: nn.Module, memory: EWC) -> Iterator[ResultRow]:
    """Yield the bytes per parameter of a memory: of the parameters with factors, and of all."""
    well, layers = memory._wells.active, memory._wells.active.layers
    in_layers = {
        name for each, layer in layers.items() for name in (each, layer.bias) if name is not None
    }
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    factored = sum(sizes[name] for name in in_layers)
    anchors = {name: tensor.nbytes for name, tensor in well.anchor.items()}
    for what, names in (("all parameters", sizes.keys()), ("those with factors", in_layers)):
        size = sum(sizes[name] for name in names)
        parts = {
            "anchor": sum(anchors[name] for name in names),
            "precision": sum(t.nbytes for name, t in well.precision.items() if name in names),
            "eigenvectors": sum(
                factor.matrix.nbytes + (0 if factor.values is None else factor.values.nbytes)
                for layer in layers.values()
                for factor in (layer.inputs, layer.outputs)
            ),
            "force": 4 * factored,
        }
        if size:
            yield {
                "memory": f"{memory.curvature}, {what}",
                **{part: round(count / size, 2) for part, count in parts.items()},
                "bytes per parameter": sum(parts.values()) / size,
            }
