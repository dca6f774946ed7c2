"""One training step with the pull of 1, 10 and 100 tasks, as a multiple of a step without it.

For comparison, what others do: one loss term per task, written out or by avalanche's plugin.
"""

import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from benchmarks.measure import ResultRow, ResultTable, Workload, best_seconds, library
from benchmarks.speed.models import mlp, mlp_batch
from ewc import EWC, EWCWarning

TASKS = (1, 10, 100)
STRENGTH = 100.0
BATCH_SIZE, STEPS, ROUNDS = 128, 20, 40
MAX_SECONDS = 8.0  # for each workload that is not ours

Wells = list[tuple[dict[str, Tensor], dict[str, Tensor]]]  # F and θ* of each task
Penalty = Callable[[nn.Module], Tensor]


def tables(*, ours_only: bool) -> Iterator[ResultTable]:
    wells = random_wells(max(TASKS))
    penalties = {"one loss term per task": loss_terms}
    if not ours_only:
        penalties["avalanche EWCPlugin"] = avalanche
    # Steps with one loss term per task are slow, so a workload has fewer of them.
    steps: dict[tuple[str, int], tuple[Workload, int]] = {("plain step", 0): (step(), STEPS)}
    for tasks in TASKS:
        steps["ewc, attached", tasks] = (step(pulled_by=wells[:tasks]), STEPS)
    for name, penalty in penalties.items():
        for tasks in TASKS:
            check(penalty(wells[:tasks]), wells[:tasks])
            steps[name, tasks] = (step(penalty(wells[:tasks])), max(1, STEPS // tasks))
    workloads = {f"{name} {tasks}": repeated(*steps[name, tasks]) for name, tasks in steps}
    limits = {f"{name} {tasks}": MAX_SECONDS for name in penalties for tasks in TASKS}
    best = best_seconds(workloads, ROUNDS, limits=limits)
    times = {key: best[f"{key[0]} {key[1]}"] / count for key, (_, count) in steps.items()}
    yield ResultTable(
        f"One training step, MLP 784-400-400-10, batch {BATCH_SIZE}, SGD with momentum 0.9",
        [row(*key, time, times["plain step", 0]) for key, time in times.items()],
    )


def row(name: str, tasks: int, time: float, plain: float) -> ResultRow:
    """Return a row of the table; `time` and `plain` are seconds per step."""
    return {"method": name, "tasks": tasks, "milliseconds": 1000 * time, "multiple": time / plain}


def repeated(step: Workload, steps: int) -> Workload:
    """Return a workload of several steps."""

    def run() -> None:
        for _ in range(steps):
            step()

    return run


def starting_model() -> nn.Module:
    """Create the model, always with the same weights."""
    torch.manual_seed(0)
    return mlp()


def random_wells(tasks: int) -> Wells:
    """Return random F, about as large as real ones, and θ* near the starting weights."""
    weights = {name: p.detach() for name, p in starting_model().named_parameters()}
    return [
        (
            {name: 1e-4 * torch.rand_like(p) for name, p in weights.items()},
            {name: p + 0.01 * torch.randn_like(p) for name, p in weights.items()},
        )
        for _ in range(tasks)
    ]


def step(penalty: Penalty | None = None, pulled_by: Wells | None = None) -> Workload:
    """Return a training step on a new model, with a penalty in its loss, a pull, or neither."""
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
    """Return a memory with these wells; the model keeps its weights."""
    ewc_memory, start = EWC(model, strength=STRENGTH), starting_model().state_dict()
    for precision, anchor in wells:
        model.load_state_dict(anchor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EWCWarning)  # these weights are not trained, but set
            ewc_memory.anchor(precision)
    model.load_state_dict(start)
    return ewc_memory


def loss_terms(wells: Wells) -> Penalty:
    """Return (λ / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)², computed term by term."""

    def penalty(model: nn.Module) -> Tensor:
        total = torch.zeros(())
        for precision, anchor in wells:
            for name, p in model.named_parameters():
                total = total + (precision[name] * (p - anchor[name]).square()).sum()
        return STRENGTH / 2 * total

    return penalty


def avalanche(wells: Wells) -> Penalty:
    """Return the penalty of avalanche's plugin, without the strategy that usually calls it."""
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
    """Raise if a penalty differs from that of our memory: their times could not be compared."""
    model = starting_model()
    torch.testing.assert_close(
        penalty(model).detach(), memory(model, wells).penalty().detach(), rtol=1e-3, atol=0.0
    )
