"""The networks of `benchmarks.methods` and `benchmarks.budget`: one method, strength, seed each."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from benchmarks.method_results import Cell, CellRow, append_row
from benchmarks.timing import one_thread
from ewc.importances import SynapticIntelligence, memory_aware_synapses, second_moments
from ewc_paper.mnist.config import TrainingConfig
from ewc_paper.mnist.data import Data, load
from ewc_paper.mnist.learner import PermutedMnistLearner
from ewc_paper.mnist.tasks import PermutedTasks

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
    "ewc-default": Method("EWC, exact Fisher, default budget", 0.0, budget="auto"),
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
