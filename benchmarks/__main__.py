"""The command line: `python -m benchmarks [NAME ...] [--ours] [--json FILE]`."""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console

from benchmarks import fisher, games, peak, pull, step, training, update
from benchmarks.libraries import MissingLibrary
from benchmarks.tables import ResultTable, as_json, machine, print_table
from benchmarks.timing import one_thread

BENCHMARKS = {
    "fisher": fisher.tables,
    "memory": peak.tables,
    "step": step.tables,
    "pull": pull.tables,
    "training": training.tables,
    "games": games.tables,
    "update": update.tables,
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
