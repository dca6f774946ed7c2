"""Several processes on this machine, and what a test runs in each of them.

A process is a rank of a group that meets through a file, so no port is needed. A rank that fails,
or waits for too long, ends all of them and fails the test.
"""

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch import multiprocessing as mp

SECONDS = 400  # that one program may take on a busy machine

Program = Callable[[Path], dict[str, Any]]


def run_ranks(program: Program, ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Run a program in several processes; return what it returned in each.

    Args:
        program: takes a folder that all ranks share, and returns tensors and plain values. It must
            be a function at the top of a module, because each process imports it.
        ranks: number of processes.
        folder: an empty folder.
    """
    meeting = folder / f"meeting-{os.getpid()}"  # one that an earlier run left cannot be used again
    context = mp.spawn(_run, (program, ranks, folder, meeting), nprocs=ranks, join=False)
    assert context is not None
    end = time.monotonic() + SECONDS
    try:
        while not context.join(timeout=max(0.0, end - time.monotonic())):
            assert time.monotonic() < end, f"{program.__name__} took more than {SECONDS} seconds"
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def _run(rank: int, program: Program, ranks: int, folder: Path, meeting: Path) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=SECONDS / 4),
    )
    torch.save(program(folder), folder / f"{rank}.pt")
    distributed.destroy_process_group()
