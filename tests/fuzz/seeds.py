"""One seed, one program: what the processes of `python -m fuzz` run."""

from collections.abc import Callable

import torch

from fuzz import memory_programs, models

RUNS: dict[str, Callable[[int], None]] = {"models": models.run, "memory": memory_programs.run}


def check(task: tuple[str, int]) -> tuple[str, int, str]:
    """What is wrong with the program of a seed, "" if nothing is."""
    what, seed = task
    torch.set_num_threads(1)
    try:
        RUNS[what](seed)
    except AssertionError as mismatch:
        return what, seed, str(mismatch)
    return what, seed, ""
