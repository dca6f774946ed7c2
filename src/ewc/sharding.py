"""Tensors that FSDP2 shards over processes, as `DTensor`s: their shards, and numbers of the whole.

A function of a sharded tensor that returns a number has to add up all shards, which every process
must take part in: `float(tensor.sum())` would be the sum of this process's shard alone. Plain
tensors pass through all functions here as they are.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a `DTensor`; its module takes long to import, and only its users do."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _sharded(tensor: Tensor) -> Any:
    """Return the tensor with the methods of a `DTensor`, which have no types here."""
    return tensor


def shard(tensor: Tensor) -> Tensor:
    """Return this process's shard as a plain tensor that shares its memory, and its gradient."""
    if not is_sharded(tensor):
        return tensor
    local: Tensor = _sharded(tensor.detach()).to_local()
    if tensor.grad is not None:
        local.grad = shard(tensor.grad)
    return local


def shards(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this process's shard of each tensor."""
    return [shard(tensor) for tensor in tensors]


def shard_values(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a parameter's state in an optimizer with this process's shard of each tensor."""
    if not any(isinstance(value, Tensor) and is_sharded(value) for value in state.values()):
        return state
    return {key: shard(v) if isinstance(v, Tensor) else v for key, v in state.items()}


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor, gathered from all processes. Gradients pass through."""
    full: Tensor = _sharded(tensor).full_tensor() if is_sharded(tensor) else tensor
    return full


def total(tensor: Tensor) -> Tensor:
    """Return the sum of all entries, in all shards."""
    return whole(tensor.sum())


def mean(tensor: Tensor) -> Tensor:
    """Return the mean of all entries, in all shards, however unequal these are."""
    return total(tensor) / tensor.numel() if is_sharded(tensor) else tensor.mean()


def joined(scalars: Sequence[Tensor]) -> list[Tensor]:
    """Return fewer scalars with the same sum, each of which is whole. Gradients pass through."""
    plain = [scalar for scalar in scalars if not is_sharded(scalar)]
    by_mesh: dict[Any, list[Tensor]] = {}
    for scalar in scalars:
        if is_sharded(scalar):
            by_mesh.setdefault(_sharded(scalar).device_mesh, []).append(scalar)
    return plain + [whole(reduce(add, parts)) for parts in by_mesh.values()]


def any_nonzero(tensor: Tensor) -> bool:
    """Whether some entry, in any shard, is not zero."""
    return bool(total(tensor != 0) if is_sharded(tensor) else tensor.any())


def all_true(condition: Tensor) -> bool:
    """Whether a condition holds for all entries, in all shards."""
    return not any_nonzero(~condition) if is_sharded(condition) else bool(condition.all())


def largest(tensor: Tensor) -> float:
    """Return the largest of entries >= 0, in all shards; 0 if there is none."""
    local = shard(tensor)
    value = local.max() if local.numel() else local.new_zeros(())
    if is_sharded(tensor):
        mesh = _sharded(tensor).device_mesh
        for dim in range(mesh.ndim):
            torch.distributed.all_reduce(
                value, torch.distributed.ReduceOp.MAX, group=mesh.get_group(dim)
            )
    return float(value)


def sum_of_shards(value: Tensor, parameter: Tensor) -> Tensor:
    """Return the sum over processes of `value`, which each computed from its shard of a parameter.

    Any shape will do. The result is plain, and the same on all processes.
    """
    if not is_sharded(parameter):
        return value
    from torch.distributed.tensor import DTensor, Partial, Replicate

    placements = [
        Partial() if p.is_shard() else Replicate() for p in _sharded(parameter).placements
    ]
    mesh = _sharded(parameter).device_mesh
    return whole(DTensor.from_local(value, mesh, placements, run_check=False))


def summed_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's shard of the sum over all processes of `value`, each of them a whole.

    `parameter` is sharded, and its layout is that of the sum.
    """
    from torch.distributed.tensor import DTensor, Partial

    mesh = _sharded(parameter).device_mesh
    partial = DTensor.from_local(value, mesh, [Partial()] * mesh.ndim, run_check=False)
    return shard(partial.redistribute(placements=_sharded(parameter).placements))


def same_layout(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether both are plain, or sharded in the same way."""
    if not is_sharded(parameter):
        return not is_sharded(tensor)
    return (
        is_sharded(tensor)
        and _sharded(tensor).device_mesh == _sharded(parameter).device_mesh
        and _sharded(tensor).placements == _sharded(parameter).placements
    )


def laid_out_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return the tensor, of any layout, sharded as the parameter is, or gathered if it is plain.

    A plain tensor must be the same on all processes: each cuts its shard out of it.
    """
    if same_layout(tensor, parameter):
        return tensor
    tensor = whole(tensor)
    if not is_sharded(parameter):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    mesh = _sharded(parameter).device_mesh
    copy = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    cut: Tensor = copy.redistribute(placements=_sharded(parameter).placements)
    return cut


def reshard(model: nn.Module) -> None:
    """Let the modules of FSDP2 show their shards: after a forward pass some are still gathered."""
    if (fsdp := sys.modules.get("torch.distributed.fsdp")) is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def refuse_fsdp1(model: nn.Module) -> None:
    """Raise if the first FSDP, a wrapper that flattens parameters, has anything to do with it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and (
        any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules())
        or any(getattr(parameter, "_fsdp_flattened", False) for parameter in model.parameters())
    ):
        raise TypeError(
            "FullyShardedDataParallel (FSDP1) flattens parameters and cannot be used with ewc: "
            "shard the model with torch.distributed.fsdp.fully_shard (FSDP2) instead"
        )
