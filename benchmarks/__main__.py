"""The command line of the benchmarks in `speed`: `python -m benchmarks [NAME ...] [--ours]`."""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console

from benchmarks.measure import (
    MissingLibrary,
    ResultTable,
    as_json,
    machine,
    one_thread,
    print_table,
)
from benchmarks.speed import fisher, games, kronecker, pull, step, training

BENCHMARKS = {
    "fisher": fisher.tables,
    "memory": fisher.memory_tables,
    "step": step.tables,
    "pull": pull.tables,
    "kronecker": kronecker.tables,
    "training": training.tables,
    "games": games.tables,
    "update": games.update_tables,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmarks that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"benchmarks to run: {', '.join(BENCHMARKS)} (default: all)",
    )
    parser.add_argument("--ours", action="store_true", help="leave out the other libraries")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also store the results there")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(
            f"expected names out of {', '.join(BENCHMARKS)}, got {', '.join(sorted(unknown))}"
        )
    try:
        run(options.names or list(BENCHMARKS), options.ours, options.json)
    except MissingLibrary as error:
        parser.error(str(error))


def run(names: list[str], ours_only: bool, file: Path | None) -> None:
    """Run benchmarks and print their tables.

    Args:
        names: keys of BENCHMARKS.
        ours_only: leave out the other libraries.
        file: where to store the results as JSON, if anywhere.
    """
    one_thread()
    console = Console(width=None if Console().is_terminal else 140)
    console.print(
        "  ".join(f"{name} {value}" for name, value in machine().items()), highlight=False
    )
    start = time.perf_counter()
    tables: list[ResultTable] = []
    for name in names:
        for table in BENCHMARKS[name](ours_only=ours_only):
            print_table(table, console)
            tables.append(table)
            if file is not None:
                file.write_text(json.dumps(as_json(tables), indent=1) + "\n")
    console.print(f"{time.perf_counter() - start:.0f} seconds in all", highlight=False)


if __name__ == "__main__":
    main()
