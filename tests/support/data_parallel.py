"""What the ranks run in the tests of several processes with whole models."""

from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import ewc
from ewc.processes import find_processes
from support.rank_tasks import (
    Batch,
    bare,
    error_of,
    learn_two_tasks,
    make_model,
    make_task,
    uneven_part,
)  # fmt: skip


def two_tasks() -> dict[str, Any]:
    """Learn two tasks in groups of 1, 2 and 4 ranks."""
    rank = distributed.get_rank()
    results: dict[str, Any] = {}
    for size in (1, 2, 4):
        group = distributed.new_group(list(range(size)))
        for name in ("sgd", "adamw", "budget") if rank < size else ():
            model = DistributedDataParallel(make_model(), process_group=group)
            results[f"{name} {size}"] = learn_two_tasks(model, name, rank, size)
    return results


def other_calls() -> dict[str, Any]:
    """What else 4 ranks may do, and what is refused."""
    rank, size = distributed.get_rank(), 4
    model, batches = make_model(), uneven_part(make_task(1), rank, size)
    world, local = ({"process_group": name} for name in ("world", "local"))
    wrapped = ewc.EWC(DistributedDataParallel(model), strength=1.0)
    processes = find_processes(model, "world")
    results: dict[str, Any] = {
        "plain": error_of(lambda: ewc.fisher_diagonal(model, batches)),
        "unknown": error_of(lambda: ewc.EWC(model, strength=1.0, process_group="all")),
        "world": ewc.fisher_diagonal(model, batches, **world),
        "local": ewc.fisher_diagonal(model, [make_task(1)], **local),
        "absolutes": ewc.importances.memory_aware_synapses(model, batches, **world),
        "draw": float(torch.rand((), generator=processes.own_generator(seeded()))),
        "empty": error_of(lambda: ewc.fisher_diagonal(model, [], **world)),
        "broken": error_of(lambda: wrapped.consolidate(broken_in_rank_2(batches))),
        "tasks": list(wrapped.tasks),
        "share": processes.share(10),
        "few": ewc.fisher_diagonal(model, [make_task(1)], max_samples=2, **world),
    }
    wrapped.consolidate(batches, task="after the error")
    state = wrapped.state_dict()
    memory = ewc.EWC(make_model(), strength=3.0)
    memory.load_state_dict(state)
    results["bare"] = memory.state_dict()
    with torch.no_grad():
        next(bare(model).parameters()).mul_(1 + rank)
    results["different"] = error_of(lambda: ewc.fisher_diagonal(model, batches, **world))
    return results


def broken_in_rank_2(batches: list[Batch]) -> list[Any]:
    broken = [(torch.randn(2, 5).double(), torch.tensor([1, 0, 1]))]
    return batches + broken * (distributed.get_rank() == 2)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
