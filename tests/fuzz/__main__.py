"""The long mode of the random tests: `make fuzz`, or `python -m fuzz --help` from tests/.

Each seed is a program of its own; one that fails is printed at its smallest, and the exit code says
that there was one.
"""

import argparse
import multiprocessing
import os
import sys
import time

from fuzz.seeds import RUNS, check


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--models", type=int, default=10_000, help="random models for the Fisher")
    parser.add_argument("--factors", type=int, default=5_000, help="and for its Kronecker factors")
    parser.add_argument("--memory", type=int, default=2_000, help="random programs for the memory")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of all")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="run so many at once")
    options = parser.parse_args()
    tasks = [
        (what, options.seed + n) for what in RUNS for n in range(getattr(options, what))
    ]  # fmt: skip
    started, failed = time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, (what, seed, wrong) in enumerate(pool.imap_unordered(check, tasks, 8), 1):
            if wrong:
                failed += 1
                print(f"\n{what}, seed {seed}: {wrong}\n", flush=True)
            if done % 500 == 0:
                minutes = (time.monotonic() - started) / 60
                print(f"{done} of {len(tasks)} in {minutes:.1f} min, {failed} failed", flush=True)
    print(
        f"{options.models} models, {options.factors} with factors and {options.memory} memory "
        f"programs from seed {options.seed}: {failed} failed"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
