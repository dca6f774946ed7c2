"""One seed, one program: what the processes of `python -m fuzz` run, and the tests."""

from collections.abc import Callable

import pytest
import torch

from fuzz import memory_programs, model_factors, models

RUNS: dict[str, Callable[[int], object]] = {
    "models": models.run,
    "factors": model_factors.run,
    "memory": memory_programs.run,
}


def check(task: tuple[str, int]) -> tuple[str, int, str]:
    """What is wrong with the program of a seed, "" if nothing is."""
    what, seed = task
    torch.set_num_threads(1)
    try:
        RUNS[what](seed)
    except AssertionError as mismatch:
        return what, seed, str(mismatch)
    return what, seed, ""


def few_now(parts: int) -> list[object]:
    """The parts of a fixed budget of seeds: a quarter at every test, the others when there is time.

    Args:
        parts: into how many the budget is cut.
    """
    return [
        pytest.param(part, marks=pytest.mark.slow if 4 * part >= parts else ())
        for part in range(parts)
    ]
