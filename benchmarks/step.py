"""One training step with the pull of 1, 10 and 100 tasks, as a multiple of the step without.

Beside it what others do: a loss term for every task, written out or by avalanche's plugin.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from benchmarks.libraries import library
from benchmarks.models import mlp, mlp_batch
from benchmarks.tables import Row, Table
from benchmarks.timing import Way, best_seconds
from ewc.memory import EWC

TASKS = (1, 10, 100)
STRENGTH = 100.0
BATCH_SIZE, STEPS, ROUNDS = 128, 20, 40
SECONDS_IN_ALL = 8.0  # of a way that is not ours

Wells = list[tuple[dict[str, Tensor], dict[str, Tensor]]]  # of each task, F and θ*
Penalty = Callable[[nn.Module], Tensor]


def tables(*, ours_only: bool) -> Iterator[Table]:
    wells = random_wells(max(TASKS))
    penalties = {"a loss term a task": loss_terms}
    if not ours_only:
        penalties["avalanche EWCPlugin"] = avalanche
    # A step with a loss term a task is slow, so fewer of them make a turn.
    turns: dict[tuple[str, int], tuple[Way, int]] = {("plain step", 0): (step(), STEPS)}
    for tasks in TASKS:
        turns["ewc, attached", tasks] = (step(pulled_by=wells[:tasks]), STEPS)
    for name, penalty in penalties.items():
        for tasks in TASKS:
            check(penalty(wells[:tasks]), wells[:tasks])
            turns[name, tasks] = (step(penalty(wells[:tasks])), max(1, STEPS // tasks))
    ways = {f"{name} {tasks}": turn(*turns[name, tasks]) for name, tasks in turns}
    limits = {f"{name} {tasks}": SECONDS_IN_ALL for name in penalties for tasks in TASKS}
    best = best_seconds(ways, ROUNDS, limits=limits)
    times = {key: best[f"{key[0]} {key[1]}"] / steps for key, (_, steps) in turns.items()}
    yield Table(
        f"One training step, MLP 784-400-400-10, batch {BATCH_SIZE}, SGD with momentum 0.9",
        [row(*key, time, times["plain step", 0]) for key, time in times.items()],
    )


def row(name: str, tasks: int, time: float, plain: float) -> Row:
    return {"way": name, "tasks": tasks, "milliseconds": 1000 * time, "multiple": time / plain}


def turn(step: Way, steps: int) -> Way:
    """So many steps as one call."""

    def run() -> None:
        for _ in range(steps):
            step()

    return run


def starting_model() -> nn.Module:
    torch.manual_seed(0)
    return mlp()


def random_wells(tasks: int) -> Wells:
    """Precisions of the size of a real Fisher, around weights near the starting ones."""
    weights = {name: p.detach() for name, p in starting_model().named_parameters()}
    return [
        (
            {name: 1e-4 * torch.rand_like(p) for name, p in weights.items()},
            {name: p + 0.01 * torch.randn_like(p) for name, p in weights.items()},
        )
        for _ in range(tasks)
    ]


def step(penalty: Penalty | None = None, pulled_by: Wells | None = None) -> Way:
    """A training step on a model of its own, with a penalty in its loss, a pull, or neither."""
    model, (inputs, targets) = starting_model(), mlp_batch(BATCH_SIZE)
    optimizer = SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if pulled_by is not None:
        memory(model, pulled_by).attach(optimizer)

    def run() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        if penalty is not None:
            loss = loss + penalty(model)
        loss.backward()
        optimizer.step()

    return run


def memory(model: nn.Module, wells: Wells) -> EWC:
    """A memory that holds the wells; the model is left with its own weights."""
    held, start = EWC(model, strength=STRENGTH), starting_model().state_dict()
    for precision, anchor in wells:
        model.load_state_dict(anchor)
        held.anchor(precision)
    model.load_state_dict(start)
    return held


def loss_terms(wells: Wells) -> Penalty:
    """(λ / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)², as the equation stands."""

    def penalty(model: nn.Module) -> Tensor:
        total = torch.zeros(())
        for precision, anchor in wells:
            for name, p in model.named_parameters():
                total = total + (precision[name] * (p - anchor[name]).square()).sum()
        return STRENGTH / 2 * total

    return penalty


def avalanche(wells: Wells) -> Penalty:
    """avalanche's plugin alone, without the strategy that usually calls it."""
    data = library("avalanche.training.utils").ParamData
    plugin = library("avalanche.training.plugins").EWCPlugin(ewc_lambda=STRENGTH / 2)
    for task, (precision, anchor) in enumerate(wells):
        plugin.importances[task] = {n: data(n, init_tensor=t) for n, t in precision.items()}
        plugin.saved_params[task] = {n: data(n, init_tensor=t) for n, t in anchor.items()}

    def penalty(model: nn.Module) -> Tensor:
        clock = SimpleNamespace(train_exp_counter=len(wells))
        strategy = SimpleNamespace(clock=clock, device="cpu", model=model, loss=torch.zeros(()))
        plugin.before_backward(strategy)
        loss: Tensor = strategy.loss
        return loss

    return penalty


def check(penalty: Penalty, wells: Wells) -> None:
    """All ways must hold the weights alike, or their times say nothing."""
    model = starting_model()
    torch.testing.assert_close(
        penalty(model).detach(), memory(model, wells).penalty().detach(), rtol=1e-3, atol=0.0
    )
