"""A memory in a checkpoint of `torch.distributed.checkpoint`, which many ranks write together.

Saving needs nothing from here: `memory.state_dict()` has shards where the parameters have. Loading
does, because that library fills tensors which must be there already, and an empty memory has none.
"""

from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ewc.distributed.ranks import find_ranks
from ewc.memory import EWC, all_weights
from ewc.storage import parameter_name


def load_checkpoint(memory: EWC, path: str | PathLike[str], *, key: str = "memory") -> None:
    """Load a memory from a checkpoint; all ranks that share the model must call this.

    The number of ranks, and how they shard the model, may differ from those that saved it. If
    it fails, the memory does not change. Checkpoints of this library have a pickled index, which
    can run code: load only those that you trust.

    Args:
        memory: the memory to load into.
        path: the directory of the checkpoint.
        key: the memory's key in the dictionary that was saved.

    Example:
        >>> import torch, ewc
        >>> import torch.distributed.checkpoint as dcp
        >>> from ewc.checkpoint import load_checkpoint
        >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
        >>> memory.anchor(1.0, task="A")
        >>> _ = dcp.save({"memory": memory.state_dict()}, checkpoint_id="checkpoint")
        >>> empty = ewc.EWC(torch.nn.Linear(4, 3), strength=1.0)
        >>> load_checkpoint(empty, "checkpoint")
        >>> empty
        EWC(strength=100.0, decay=1.0, tasks=['A'])
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(path)
    entries = reader.read_metadata().state_dict_metadata
    saved = {
        name.removeprefix(f"{key}."): entry
        for name, entry in entries.items()
        if name.startswith(f"{key}.")
    }
    if "values" not in saved:
        keys = sorted({name.partition(".")[0] for name in entries})
        raise ValueError(f"expected a memory under the key {key!r}, but the checkpoint has {keys}")
    parameters = all_weights(memory)
    ranks = find_ranks(memory.model, memory.process_group)
    state = {name: _empty(name, entry, parameters) for name, entry in saved.items()}
    load(
        {key: state},
        storage_reader=reader,
        process_group=ranks.group,
        no_dist=ranks.group is None,
    )
    memory.load_state_dict(state)


def _empty(name: str, entry: Any, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor to load an entry into, sharded as the parameter that it belongs to."""
    parameter = parameters.get(parameter_name(name))
    if parameter is None or parameter.shape != entry.size:
        return torch.empty(entry.size, dtype=entry.properties.dtype)
    return torch.empty_like(parameter, dtype=entry.properties.dtype, requires_grad=False)
