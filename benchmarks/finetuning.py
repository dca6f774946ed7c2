"""Fine-tuning a language model: what is learned of the new text, and what is kept of the old.

Model and texts are those of `examples/finetune_lm.py`. EWC, an L2 anchor, LoRA, smaller learning
rates, early stopping and a little replay are measured over their values and several seeds. Results
are stored run by run; started again, the benchmark goes on where it stopped.

    python -m benchmarks.finetuning --folder runs/finetuning
    python -m benchmarks.finetuning --folder runs/finetuning --methods ewc --kind empirical
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from transformers.utils import logging

from benchmarks.frontier import summary, tunings
from benchmarks.frontier_figure import draw
from benchmarks.tables import print_table
from benchmarks.tuning_methods import (
    VALUES,
    FisherOptions,
    Start,
    fisher_of,
    losses,
    tune,
)
from benchmarks.tuning_results import Key, Results
from examples.finetune_lm import QUICK, Settings, pretrained, texts, untrained

Options = TypeVar("Options", Settings, FisherOptions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print the tables and draw the figure."""
    options = _parser().parse_args(arguments)
    settings = _changed(QUICK if options.quick else Settings(), options)
    fisher = _changed(FisherOptions(), options)
    shared = {**asdict(settings), "python": sys.version, "torch": torch.__version__}
    del shared["seed"]
    results = Results(options.folder / "results.jsonl", shared)
    logging.disable_progress_bar()
    if not options.table:
        for seed in options.seeds:
            cells = [cell for cell in _cells(seed, options, fisher) if cell not in results]
            if cells:
                run(replace(settings, seed=seed), fisher, cells, results, options.folder)
    found = tunings(results.rows)
    if not found:
        raise SystemExit("nothing to show yet: run 'plain' of at least one seed")
    for table in summary(found):
        print_table(table, Console(width=None if Console().is_terminal else 140))
    print("figure:", draw(found, options.folder / "frontier.png"))


def run(
    settings: Settings, options: FisherOptions, cells: list[Key], results: Results, folder: Path
) -> None:
    """Train and measure the missing cells of one seed."""
    old, new = texts(settings)
    model = pretrained(settings, old, folder / f"pretrained-{settings.seed}")
    needs_fisher = any(line.startswith(("ewc", "default")) for _, line, _ in cells)
    fisher = fisher_of(model, old.train, options, settings.seed) if needs_fisher else {}
    start = Start(model, old, new, settings, options, fisher)
    for cell in cells:
        seed, line, value = cell
        began = time.perf_counter()
        if line == "untrained":
            points = [losses(untrained(settings), start)]
        elif line == "before":
            points = [losses(model, start)]
        else:
            points = tune(start, line.partition(" ")[0], value)
        results.add(cell, points)
        last = points[-1]
        print(
            f"seed {seed}  {line} {value:g}: new {last['new']:.3f}, old {last['old']:.3f} "
            f"(validation), {time.perf_counter() - began:.0f} s",
            flush=True,
        )


def _cells(seed: int, options: argparse.Namespace, fisher: FisherOptions) -> Iterator[Key]:
    """Yield all runs of a seed. Lines of another Fisher than the default are named after it."""
    yield seed, "untrained", 0.0
    yield seed, "before", 0.0
    yield seed, "plain", 0.0
    for method in options.methods:
        named = method in ("ewc", "default") and fisher.label()
        for value in options.values or VALUES[method]:
            yield seed, f"{method} {fisher.label()}" if named else method, value


def _changed(usual: Options, options: argparse.Namespace) -> Options:
    """Return the settings with what the command line changes."""
    named = {field.name: getattr(options, field.name, None) for field in fields(usual)}
    return replace(usual, **{name: value for name, value in named.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="where results are stored")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="*", choices=VALUES, default=list(VALUES))
    parser.add_argument("--values", type=float, nargs="+", help="in place of the usual ones")
    parser.add_argument("--table", action="store_true", help="only show what is there")
    parser.add_argument("--quick", action="store_true", help="a tiny model that learns little")
    for group in (Settings(), FisherOptions()):
        for name, value in asdict(group).items():
            if name != "seed":
                parser.add_argument(
                    f"--{name.replace('_', '-')}", type=type(value), help=f"default: {value!r}"
                )
    return parser


if __name__ == "__main__":
    main()
