"""Which importance protects best? Many ways to learn permuted MNIST, one task after another.

    python -m benchmarks.studies.methods --tasks 10 --seeds 3

All methods train the same network with Adam, on the same images in the same order, and are pulled
by the same memory: they differ in its precision. The strength of each is searched on permutations,
first weights and images of its own (the seed `SEARCH_SEED`, and training images that are held out)
and reported on those of the seeds 0, 1, 2, ... (the test images).

Each network that is finished is a line of the file `--results`, and is not trained again when the
command is repeated: a stop loses only the networks that were being trained.
"""

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.measure import one_thread
from ewc.fisher import fisher_diagonal
from ewc.importances import SynapticIntelligence, memory_aware_synapses, second_moments
from ewc.step_size import step_size_rule
from ewc_paper.mnist.config import TrainingConfig
from ewc_paper.mnist.data import Data, PermutedTasks, load
from ewc_paper.mnist.learner import PermutedMnistLearner
from ewc_paper.runs.files import replace_file


@dataclass(frozen=True)
class Cell:
    """One network: how it is trained, and on what it is measured.

    Attributes:
        method: a key of `METHODS`.
        strength: λ of the memory.
        seed: of the permutations, the first weights and the order of the images.
        tasks: number of tasks.
        epochs: epochs per task.
        images: training images.
        held_out: measure on training images that are held out, not on the test images.
        optimizer: a key of `OPTIMIZERS`.
        budget: of the memory, in place of the strength, in nats or "auto"; 0 if there is none.
    """

    method: str = ""
    strength: float = 0.0
    seed: int = 0
    tasks: int = 10
    epochs: int = 1
    images: int = 55_000
    held_out: bool = False
    optimizer: str = "adam"
    budget: float | Literal["auto"] = 0.0


class CellRow(TypedDict):
    """The result of one cell: accuracies after the last task, and of each task when learned."""

    cell: Cell
    accuracy: list[float]
    learned: list[float]
    seconds: float


def read_rows(file: Path) -> dict[Cell, CellRow]:
    """Return the rows of a file, none if it does not exist.

    A last line that was cut short by a stop is removed from the file.
    """
    if not file.exists():
        return {}
    lines = file.read_bytes().split(b"\n")
    if lines.pop():
        replace_file(file, b"".join(line + b"\n" for line in lines))
    rows: dict[Cell, CellRow] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            cell = Cell(**row["cell"])
            rows[cell] = CellRow(
                cell=cell,
                accuracy=row["accuracy"],
                learned=row["learned"],
                seconds=row["seconds"],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file}, line {number}: expected a result, got {line!r}") from error
    return rows


def append_row(file: Path, row: CellRow) -> None:
    """Add a row to the file, and make sure that it is on the disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**row, "cell": asdict(row["cell"])}) + "\n"
    with file.open("ab") as out:
        out.write(text.encode())
        out.flush()
        os.fsync(out.fileno())


HELD_OUT = 5000  # training images for the search
CONFIG = TrainingConfig(batch_size=128, fisher_samples=5000)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "lr": 1e-3},
    "sgd": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
}


class PathLearner(PermutedMnistLearner):
    """Synaptic intelligence."""

    def _begin_task(self) -> None:
        super()._begin_task()
        self.path = SynapticIntelligence(self.model, self.optimizer)

    def _remember(self) -> None:
        self.memory.anchor(self.path.precision(), task=str(self.task))


class SynapsesLearner(PermutedMnistLearner):
    """Memory aware synapses."""

    def _remember(self) -> None:
        importance = memory_aware_synapses(self.model, self.fisher_batches(self.task))
        self.memory.anchor(importance, task=str(self.task))


class MomentsLearner(PermutedMnistLearner):
    """Adam's second moments, times the batch size."""

    def _remember(self) -> None:
        batch_size = self.config.batch_size
        moments = second_moments(self.model, self.optimizer, batch_size=batch_size)
        self.memory.anchor(moments, task=str(self.task))


class ReversedLogits(nn.Module):
    """A model with its logits negated, for the Fisher of EWC-DR (arXiv 2603.18596)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return -logits


class ReversedLearner(PermutedMnistLearner):
    """The Fisher of reversed logits, which does not vanish where the network is sure."""

    def _remember(self) -> None:
        fisher = fisher_diagonal(
            ReversedLogits(self.model), self.fisher_batches(self.task), kind=self.config.kind
        )
        own = {name.removeprefix("model."): tensor for name, tensor in fisher.items()}
        self.memory.anchor(own, task=str(self.task), floor=self.config.floor)


class AsymmetricLearner(PermutedMnistLearner):
    """ALASSO's penalty (arXiv 1908.02984) with the exact Fisher, around the last weights.

    On the side of the anchor where the weight was before the last task it is the quadratic one. On
    the other side, which no task has seen, it is `STEEPER` times as steep. It is taken
    proximally, as by `EWC`: θ ← m + (θ − m) / (1 + ηλP), with P of the side that θ is on.
    """

    STEEPER = 3.0

    def _begin_task(self) -> None:
        before = getattr(self, "start", None)
        self.start = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        if before is not None:  # the side of each weight that the last task has come from
            self.seen = {name: (before[name] - now).sign() for name, now in self.start.items()}
        super()._begin_task()

    def _attach(self) -> None:
        self.optimizer.register_step_post_hook(self._pull)

    def _remember(self) -> None:
        own = fisher_diagonal(self.model, self.fisher_batches(self.task), kind=self.config.kind)
        self.memory.anchor(own, task=str(self.task), floor=self.config.floor)

    @torch.no_grad()
    def _pull(self, optimizer: Optimizer, *_: Any) -> None:
        well, rule = self.memory._wells.active, step_size_rule(optimizer)
        (group,) = optimizer.param_groups
        for name, parameter in self.model.named_parameters():
            step = rule(group, [parameter], [optimizer.state[parameter]]).rooted()
            assert step.scale is not None
            distance = parameter - well.anchor[name]
            steeper = torch.where(distance * self.seen[name] < 0, self.STEEPER, 1.0)
            stiffness = self.config.strength * step.rate * well.precision[name] * steeper
            parameter.copy_(well.anchor[name] + distance / (1 + stiffness / step.scale[0]))


@dataclass(frozen=True)
class Method:
    """How one method is trained.

    Attributes:
        label: its name in the table.
        strength: where the search begins; 0 if the method has no strength.
        changes: what it changes in the training's config.
        learner: how it remembers a task.
        budget: of the memory, for a method that has no strength to search for; 0 if there is none.
    """

    label: str
    strength: float
    changes: dict[str, Any] = field(default_factory=dict)
    learner: type[PermutedMnistLearner] = PermutedMnistLearner
    budget: float | Literal["auto"] = 0.0


METHODS = {
    "naive": Method("none", 0.0, {"method": "sgd"}),
    "l2": Method("L2 to the last weights", 0.1, {"method": "l2"}),
    "ewc-exact": Method("EWC, exact Fisher", 100.0, {"kind": "exact"}),
    "ewc-sampled": Method("EWC, sampled Fisher", 100.0, {"kind": "sampled"}),
    "ewc-empirical": Method("EWC, empirical Fisher", 100.0, {"kind": "empirical"}),
    "ewc-kronecker": Method("EWC, Kronecker factors", 10.0, {"curvature": "kronecker"}),
    "ewc-latest": Method("EWC, exact Fisher, one center", 100.0, {"center": "latest"}),
    "asymmetric": Method(
        "… with ALASSO's asymmetric penalty", 100.0, {"center": "latest"}, AsymmetricLearner
    ),
    "reversed": Method(
        "… with reversed logits (EWC-DR)", 100.0, {"center": "latest"}, ReversedLearner
    ),
    "reversed-empirical": Method(
        "… with reversed logits and labels",
        100.0,
        {"center": "latest", "kind": "empirical"},
        ReversedLearner,
    ),
    "ewc-default": Method("EWC, exact Fisher, default budget", 0.0, budget="auto"),
    "ewc-kronecker-default": Method(
        "EWC, Kronecker factors, default budget", 0.0, {"curvature": "kronecker"}, budget="auto"
    ),
    "ewc-online": Method("online EWC, γ = 0.95", 100.0, {"decay": 0.95}),
    "si": Method("synaptic intelligence", 1.0, {}, PathLearner),
    "mas": Method("memory aware synapses", 0.1, {}, SynapsesLearner),
    "moments": Method("Adam's second moments", 100.0, {}, MomentsLearner),
    "joint": Method("all tasks so far at once", 0.0, {"method": "joint"}),
}


def train_cells(cells: Iterable[Cell], rows: dict[Cell, CellRow], file: Path, workers: int) -> None:
    """Train the cells that are not among the rows; add each to the rows and to the file.

    Args:
        cells: what to train.
        rows: what was trained before.
        file: where the rows are stored.
        workers: number of processes, of one thread each.
    """
    for row in _trained([cell for cell in cells if cell not in rows], workers):
        append_row(file, row)
        rows[row["cell"]] = row
        cell = row["cell"]
        average = sum(row["accuracy"]) / len(row["accuracy"])
        value = f"B {cell.budget!s:<9}" if cell.budget else f"λ {cell.strength:<9.3g}"
        print(f"{cell.method:14} {value} seed {cell.seed}: {average:.2%}", flush=True)


def _trained(cells: list[Cell], workers: int) -> Iterator[CellRow]:
    """Yield the results of the cells as they come."""
    if workers == 1 or len(cells) < 2:
        one_thread()  # as in the workers: several threads are slow where others use the cores
        yield from map(train, cells)
        return
    # "spawn": a process with threads, such as those of torch, must not be forked.
    with ProcessPoolExecutor(workers, get_context("spawn"), one_thread) as pool:
        for done in as_completed([pool.submit(train, cell) for cell in cells]):
            yield done.result()


def train(cell: Cell) -> CellRow:
    """Train one network and return its accuracies."""
    start = time.process_time()
    ends = [row for row in make_learner(cell).run() if row]
    return {
        "cell": cell,
        "accuracy": ends[-1]["accuracy"],
        "learned": [row["accuracy"][-1] for row in ends],
        "seconds": round(time.process_time() - start, 1),
    }


def make_learner(cell: Cell) -> PermutedMnistLearner:
    """Return the network of a cell, untrained, and all that trains it."""
    method = METHODS[cell.method]
    changes = {"tasks": cell.tasks, "epochs": cell.epochs, "seed": cell.seed, **method.changes}
    changes |= OPTIMIZERS[cell.optimizer]
    tasks = PermutedTasks(_data(cell.images, cell.held_out), cell.seed)
    learner = method.learner(tasks, replace(CONFIG, strength=cell.strength, **changes))
    if cell.budget:
        learner.memory.budget = cell.budget
    return learner


@lru_cache(maxsize=1)
def _data(images: int, held_out: bool) -> Data:
    """Return the data; accuracy is measured on the test images or on those that are held out."""
    data = load(train_samples=images, validation_samples=HELD_OUT)
    tested = data.validation if held_out else data.test
    return replace(data, validation=data.validation[:0], test=tested)


SEARCH_SEED = 1000
HALVES = range(-16, 17)  # strengths of the search: the method's first one times 10^(half / 2)


def strength_at(method: str, half: int) -> float:
    """Return a strength of the search; 0 for a method that has none."""
    return METHODS[method].strength * 10 ** (half / 2)


def next_halves(scores: Mapping[int, float]) -> list[int]:
    """Return the strengths to try next; none if the search is over.

    The search begins with three decades and goes on while the best strength is the smallest or the
    largest. Then it tries the two beside the best that are half a decade away.

    Args:
        scores: what was found so far, by half decades from the first strength.
    """
    if not scores:
        return [-2, 0, 2]
    best = max(scores, key=scores.__getitem__)
    if best in (min(scores), max(scores)):
        wanted = [best - 2 if best == min(scores) else best + 2]
    else:
        wanted = [best - 1, best + 1]
    return [half for half in wanted if half not in scores and half in HALVES]


def search_cell(method: str, half: int, size: Cell) -> Cell:
    """Return the cell of a search that tries one strength."""
    strength = strength_at(method, half)
    return replace(size, method=method, strength=strength, seed=SEARCH_SEED, held_out=True)


def found_scores(method: str, size: Cell, rows: Mapping[Cell, CellRow]) -> dict[int, float]:
    """Return the average accuracies of the strengths that were tried, by half decades."""
    cells = {half: search_cell(method, half, size) for half in HALVES}
    return {half: mean(rows[cell]["accuracy"]) for half, cell in cells.items() if cell in rows}


def best_strength(method: str, size: Cell, rows: Mapping[Cell, CellRow]) -> float:
    """Return the strength of the best average accuracy in the search."""
    scores = found_scores(method, size, rows)
    return strength_at(method, max(scores, key=scores.__getitem__)) if scores else 0.0


def reported_cell(method: str, size: Cell, searched: Cell, rows: Mapping[Cell, CellRow]) -> Cell:
    """Return the cell of a method that is reported, but for its seed."""
    strength = best_strength(method, searched, rows)
    return replace(size, method=method, strength=strength, budget=METHODS[method].budget)


def search(methods: Iterable[str], size: Cell, rows: Mapping[Cell, CellRow]) -> list[Cell]:
    """Return the cells that the searches of the methods want next."""
    return [
        search_cell(method, half, size)
        for method in methods
        if METHODS[method].strength > 0
        for half in next_halves(found_scores(method, size, rows))
    ]


def table(cells: Mapping[str, list[Cell]], rows: Mapping[Cell, CellRow]) -> list[str]:
    """Return the lines of the table, in Markdown: mean and deviation over seeds, in percent."""
    lines = [
        "| method | λ | average of all tasks | first task | last task | each when learned |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method, of_method in cells.items():
        known = [rows[cell] for cell in of_method]
        columns = [
            [mean(row["accuracy"]) for row in known],
            [row["accuracy"][0] for row in known],
            [row["accuracy"][-1] for row in known],
            [mean(row["learned"]) for row in known],
        ]
        strength = f"{of_method[0].strength:.3g}" if METHODS[method].strength else ""
        name = METHODS[method].label
        lines.append("| " + " | ".join([name, strength, *map(percent, columns)]) + " |")
    return lines


def percent(values: list[float]) -> str:
    """Return the mean, and with several values their standard deviation, in percent."""
    deviation = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{deviation}"


def run(
    methods: list[str], size: Cell, search_tasks: int, seeds: int, results: Path, workers: int
) -> list[str]:
    """Search, train what is reported, and return the lines of the table.

    Args:
        methods: keys of METHODS.
        size: the cell that all others are made from: its number of tasks, epochs and images.
        search_tasks: number of tasks in the search.
        seeds: number of seeds that are reported.
        results: the file of finished cells.
        workers: number of processes.
    """
    rows = read_rows(results)
    searched = replace(size, tasks=search_tasks)
    while wanted := search(methods, searched, rows):
        train_cells(wanted, rows, results, workers)
    cells = {
        method: [replace(reported, seed=seed) for seed in range(seeds)]
        for method in methods
        for reported in [reported_cell(method, size, searched, rows)]
    }
    train_cells([cell for some in cells.values() for cell in some], rows, results, workers)
    return table(cells, rows)


def main(arguments: list[str] | None = None) -> None:
    """Run the comparison that the arguments describe."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.methods",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--tasks", type=int, default=10, help="number of tasks (default: 10)")
    parser.add_argument("--search-tasks", type=int, default=5, help="in the search (default: 5)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds reported (default: 3)")
    parser.add_argument("--epochs", type=int, default=1, help="per task (default: 1)")
    parser.add_argument("--images", type=int, default=55_000, help="per epoch (default: 55,000)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--results", type=Path, default=Path("runs/methods.jsonl"))
    options = parser.parse_args(arguments)
    for name in ("tasks", "search_tasks", "seeds", "epochs", "images", "workers"):
        if getattr(options, name) < 1:
            parser.error(f"expected --{name.replace('_', '-')} of at least 1")
    size = Cell(tasks=options.tasks, epochs=options.epochs, images=options.images)
    search_tasks = min(options.search_tasks, options.tasks)
    lines = run(
        options.methods, size, search_tasks, options.seeds, options.results, options.workers
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
