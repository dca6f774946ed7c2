"""Fixtures that several files share: what 4 processes computed, and which kernels were called."""

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.ranks import RANKS, everything, run_ranks
from torch import distributed


class FourRanks(NamedTuple):
    """What each rank returned, by the name of the function, and the folder that they shared."""

    results: list[dict[str, Any]]
    folder: Path

    def of(self, function: str) -> list[Any]:
        """What a function returned in each rank."""
        return [result[function] for result in self.results]


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> FourRanks:
    """Start the ranks, or wait until another worker of pytest has, and read what came."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "four_ranks"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "results.pt").exists():
            torch.save(run_ranks(everything, RANKS, folder), folder / "results.pt")
    return FourRanks(torch.load(folder / "results.pt", weights_only=True), folder)


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
