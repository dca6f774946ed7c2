"""Which importance protects best? Ten ways to learn permuted MNIST, one task after another.

    python -m benchmarks.methods --tasks 10 --seeds 3

All methods train the same network with Adam, on the same images in the same order, and are pulled
by the same memory: they differ in its precision. The strength of each is searched on permutations,
first weights and images of its own (the seed `SEARCH_SEED`, and training images that are held out)
and reported on those of the seeds 0, 1, 2, ... (the test images).

Each network that is finished is a line of the file `--results`, and is not trained again when the
command is repeated: a stop loses only the networks that were being trained.
"""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from benchmarks.method_cells import METHODS, train_cells
from benchmarks.method_results import Cell, CellRow, read_rows

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
        found = [rows[cell] for cell in of_method]
        columns = [
            [mean(row["accuracy"]) for row in found],
            [row["accuracy"][0] for row in found],
            [row["accuracy"][-1] for row in found],
            [mean(row["learned"]) for row in found],
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__)
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
