"""A budget against a search for λ: permuted MNIST, one task after another, with two optimizers.

    python -m benchmarks.studies.budget                # five tasks, two seeds
    python -m benchmarks.studies.budget --rises        # what the estimate says, what is lost
    python -m benchmarks.studies.budget --curvature kronecker --tasks 20   # or with --rises

Each λ and each budget trains a network, beside plain training and training on all tasks at once.
The share behind the default budget was chosen on other permutations, first weights and images (the
seed 500, and training images that were held out) than those reported (the seeds 0, 1, ..., and the
test images), and on a small language model.
The best λ is the best on the reported test images themselves, an advantage that the budget does not
have.

As in `benchmarks.studies.methods`, each network that is finished is a line of the file `--results`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from statistics import mean
from typing import Final

import torch
from torch.nn.functional import cross_entropy

from benchmarks.studies.methods import (
    OPTIMIZERS,
    Cell,
    CellRow,
    make_learner,
    percent,
    read_rows,
    train_cells,
)
from ewc_paper.mnist.learner import PermutedMnistLearner

STRENGTHS = {
    "diagonal": (100.0, 1e3, 1e6, 10.0, 1e4, 1.0, 1e5),
    "kronecker": (10.0, 30.0, 3.0, 100.0),
}
DEFAULT: Final = "auto"
BUDGETS = {"diagonal": (5e-4, 5e-3, 5e-2), "kronecker": ()}  # in nats, beside the default
EWC = "ewc-exact"
CURVATURES = {"diagonal": EWC, "kronecker": "ewc-kronecker"}


def cells_of(size: Cell, curvature: str, joint: bool = True) -> Iterator[Cell]:
    """Yield what is trained with one optimizer and seed, the most telling first.

    Args:
        size: the cell without method, strength and budget.
        curvature: a key of `CURVATURES`.
        joint: whether training on all tasks at once is among them.
    """
    method = CURVATURES[curvature]
    yield replace(size, method="naive")
    yield replace(size, method=method, budget=DEFAULT)
    for strength in STRENGTHS[curvature]:
        yield replace(size, method=method, strength=strength)
    if joint:
        yield replace(size, method="joint")
    for budget in BUDGETS[curvature]:
        yield replace(size, method=method, budget=budget)


def table(columns: Sequence[Sequence[Cell]], rows: Mapping[Cell, CellRow]) -> list[str]:
    """Return the lines of the table, in Markdown: accuracies in percent, over seeds.

    What is not trained yet, for one of the seeds, is left out.

    Args:
        columns: for each seed, the cells of one optimizer, as `cells_of` yields them.
        rows: the results.
    """
    lines = [
        f"| {columns[0][0].optimizer} | average of all tasks | first task | each when learned |",
        "| --- | --- | --- | --- |",
    ]
    for cells in zip(*columns, strict=True):
        known = [rows[cell] for cell in cells if cell in rows]
        if len(known) < len(cells):
            continue
        numbers = [
            [mean(row["accuracy"]) for row in known],
            [row["accuracy"][0] for row in known],
            [mean(row["learned"]) for row in known],
        ]
        lines.append("| " + " | ".join([_label(cells[0]), *map(percent, numbers)]) + " |")
    return lines


def _label(cell: Cell) -> str:
    if cell.budget:
        return "the default budget" if cell.budget == DEFAULT else f"budget {cell.budget:g}"
    names = {"naive": "plain training", "joint": "all tasks so far at once"}
    return names.get(cell.method, f"λ = {cell.strength:g}")


def rises(cell: Cell) -> tuple[float, float, float]:
    """Return how much the first task's loss has risen after the second: estimated, and really.

    The rate falls to 0 within each task, because the estimate is that around a minimum: where the
    first task is still being learned, its loss falls on in the second.

    The loss is that on the images of the cell that accuracies are measured on. The third number is
    the largest estimate after any step of the second task, in units of the budget; without a budget
    it means nothing.
    """
    learner = make_learner(replace(cell, tasks=2))
    learner.config = replace(learner.config, schedule="linear", average=0.0)
    estimates: list[float] = []
    remember = learner._remember

    def estimate_and_remember() -> None:
        learner.memory.settle()
        estimates.append(learner.memory.estimated_rise())
        remember()

    learner._remember = estimate_and_remember  # type: ignore[method-assign]
    ratios: list[float] = []
    begin_task = learner._begin_task

    def begin_and_watch() -> None:
        begin_task()  # attaches the memory, whose pull then comes before this hook
        memory = learner.memory
        if cell.budget:
            learner.optimizer.register_step_post_hook(
                lambda *_: ratios.append(memory.estimated_rise() / memory.allowed_rise())
            )

    learner._begin_task = begin_and_watch  # type: ignore[method-assign]
    losses = [_first_task_loss(learner) for row in learner.run() if row]
    return estimates[1], losses[1] - losses[0], max(ratios, default=nan)


@torch.no_grad()
def _first_task_loss(learner: PermutedMnistLearner) -> float:
    tested = learner.tasks.permuted(learner.tasks.data.test, 0)
    return float(cross_entropy(learner.model(tested.images), tested.labels))


def rise_lines(size: Cell, method: str = EWC) -> Iterator[str]:
    """Yield the lines of a table: the estimate beside the real rise, over strengths and budgets.

    Args:
        size: the cell without optimizer, strength and budget.
        method: a key of `METHODS` that has a memory.
    """
    yield (
        "| optimizer | strength or budget | estimated rise | real rise | real / estimated "
        "| largest estimate / budget |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    for optimizer in OPTIMIZERS:
        cell = replace(size, method=method, optimizer=optimizer)
        for strength in (0.1, 1.0, 10.0, 100.0):
            estimated, real, _ = rises(replace(cell, strength=strength))
            yield _rise_line(f"{optimizer} | λ = {strength:g}", estimated, real, "")
        for budget in (1e-4, 5e-4, 1e-2, DEFAULT):
            estimated, real, largest = rises(replace(cell, budget=budget))
            yield _rise_line(f"{optimizer} | budget {budget}", estimated, real, f"{largest:.2f}")


def _rise_line(name: str, estimated: float, real: float, largest: str) -> str:
    return f"| {name} | {estimated:.2g} | {real:.2g} | {real / estimated:.2g} | {largest} |"


def main(arguments: list[str] | None = None) -> None:
    """Train what is missing and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.budget",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", type=int, default=5, help="number of tasks (default: 5)")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds (default: 2)")
    parser.add_argument("--epochs", type=int, default=1, help="per task (default: 1)")
    parser.add_argument("--images", type=int, default=20_000, help="per epoch (default: 20,000)")
    parser.add_argument(
        "--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS), help="both without"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--table", action="store_true", help="only show what is there")
    parser.add_argument("--rises", action="store_true", help="estimated and real rises instead")
    parser.add_argument(
        "--curvature",
        choices=CURVATURES,
        default="diagonal",
        help="what a task is remembered by (default: diagonal)",
    )
    parser.add_argument(
        "--no-joint",
        action="store_true",
        help="leave out training on all tasks at once, whose time grows as the tasks squared",
    )
    parser.add_argument("--results", type=Path, default=Path("docs/results/budget.jsonl"))
    options = parser.parse_args(arguments)
    for name in ("tasks", "seeds", "epochs", "images", "workers"):
        if getattr(options, name) < 1:
            parser.error(f"expected --{name} of at least 1")
    size = Cell(tasks=options.tasks, epochs=options.epochs, images=options.images)
    if options.rises:
        for line in rise_lines(size, CURVATURES[options.curvature]):
            print(line, flush=True)
        return
    rows = read_rows(options.results)
    seeds = range(options.seeds)
    cells = {
        name: [
            list(
                cells_of(
                    replace(size, optimizer=name, seed=seed),
                    options.curvature,
                    joint=not options.no_joint,
                )
            )
            for seed in seeds
        ]
        for name in options.optimizers
    }
    if not options.table:
        every = [of_seed for some in cells.values() for of_seed in some]
        wanted = [cell for together in zip(*every, strict=True) for cell in together]
        train_cells(wanted, rows, options.results, options.workers)
    for some in cells.values():
        print("\n".join(table(some, rows)), end="\n\n")


if __name__ == "__main__":
    main()
