"""All that the tests of several processes run there: starting them takes longer than running it."""

from pathlib import Path
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from support import data_parallel, sharded

RANKS = 4


def everything(folder: Path) -> dict[str, Any]:
    """Run in each of 4 ranks; return what the tests compare, by the names of the functions."""
    meshes = {size: DeviceMesh("cpu", list(range(size))) for size in (2, 4)}
    return {
        "data_parallel.two_tasks": data_parallel.two_tasks(),
        "data_parallel.other_calls": data_parallel.other_calls(),
        "sharded.two_tasks": sharded.two_tasks(meshes),
        "sharded.saved_and_loaded": sharded.saved_and_loaded(folder, meshes),
        "sharded.fisher_of_sequences": sharded.fisher_of_sequences(meshes),
        "sharded.fisher_with_replicas": sharded.fisher_with_replicas(),
        "sharded.other_calls": sharded.other_calls(meshes[4]),
        "sharded.most_gathered": sharded.most_gathered(meshes[4]),
        "sharded.fsdp1": sharded.fsdp1(),
    }
