"""Tensors that FSDP2 shards over ranks, as `DTensor`s: their shards, and sums over the whole.

Computations are done on the shards, as plain tensors, because operations on `DTensor`s may gather
them. A number has to be summed over all shards, which every rank must take part in, in the same
order: `float(tensor.sum())` would be that of this rank's shard. Plain tensors pass through all
functions here as they are.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

NO_DEEPSPEED = (
    "DeepSpeed (ZeRO) keeps and updates the weights in flat buffers of its own, which a memory of "
    "ewc can neither read nor pull on: train with DistributedDataParallel, or shard the model with "
    "torch.distributed.fsdp.fully_shard (FSDP2) instead"
)


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a `DTensor`; its module takes long to import, and only its users do."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard as a plain tensor that shares its memory, and its gradient."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        local: Tensor = _sharded(tensor).to_local().detach()
    if tensor.grad is not None:
        local.grad = shard(tensor.grad)
    return local


def shards(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's shard of each tensor."""
    if "torch.distributed.tensor" not in sys.modules:  # called at every step
        return list(tensors)
    return [shard(tensor) for tensor in tensors]


def shard_values(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a parameter's state in an optimizer with this rank's shard of each tensor."""
    if "torch.distributed.tensor" not in sys.modules:  # called at every step
        return state
    if not any(isinstance(value, Tensor) and is_sharded(value) for value in state.values()):
        return state
    return {key: shard(v) if isinstance(v, Tensor) else v for key, v in state.items()}


def differentiable_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard; gradients with respect to it arrive at the tensor."""
    local: Tensor = _sharded(tensor).to_local() if is_sharded(tensor) else tensor
    return local


def assembled(local: Tensor, like: Tensor) -> Tensor:
    """Return the tensor of which `local` is this rank's shard, sharded as `like` is.

    If `like` is plain, `local` is all of it.
    """
    if not is_sharded(like):
        return local
    from torch.distributed.tensor import DTensor

    mesh, placements = _sharded(like).device_mesh, _sharded(like).placements
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def elementwise(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Return a function of each entry, with the layout of the tensor."""
    return assembled(function(shard(tensor)), tensor)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor, gathered from all ranks."""
    full: Tensor = _sharded(tensor).full_tensor() if is_sharded(tensor) else tensor
    return full


def total(tensor: Tensor) -> Tensor:
    """Return the sum of all entries, in all shards."""
    return sum_of_shards(shard(tensor).sum(), tensor)


def mean(tensor: Tensor) -> Tensor:
    """Return the mean of all entries, in all shards, however unequal these are."""
    return total(tensor) / tensor.numel() if is_sharded(tensor) else tensor.mean()


def any_nonzero(tensor: Tensor) -> bool:
    """Whether some entry, in any shard, is not zero."""
    return bool(sum_of_shards(shard(tensor).count_nonzero(), tensor))


def all_true(condition: Tensor) -> bool:
    """Whether a condition holds for all entries, in all shards."""
    return not any_nonzero(elementwise(torch.logical_not, condition))


def largest(tensor: Tensor) -> float:
    """Return the largest of entries >= 0, in all shards; 0 if there is none."""
    local = shard(tensor)
    value = local.max() if local.numel() else local.new_zeros(())
    if is_sharded(tensor):
        for group in _groups(tensor):
            torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX, group=group)
    return float(value)


def sum_of_shards(value: Tensor, tensor: Tensor) -> Tensor:
    """Return the sum over ranks of `value`, which each computed from its shard of a tensor.

    It is the same in all of them, and each gets the gradient of its own shard.
    """
    if not is_sharded(tensor):
        return value
    summed: Tensor = _SumOfShards.apply(value, _groups(tensor))  # type: ignore[no-untyped-call]
    return summed


def sums_of_shards(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return scalars with the same sum as the `sum_of_shards` of each value, by fewer messages."""
    plain: list[Tensor] = []
    by_layout: dict[Any, tuple[Tensor, Tensor]] = {}
    for value, tensor in zip(values, tensors, strict=True):
        if not is_sharded(tensor):
            plain.append(value)
            continue
        layout = (_sharded(tensor).device_mesh, _sharded(tensor).placements)
        added = value + by_layout[layout][0] if layout in by_layout else value
        by_layout[layout] = (added, tensor)
    return plain + [sum_of_shards(value, tensor) for value, tensor in by_layout.values()]


def summed_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's shard of the sum over all ranks of `value`, each of them a whole.

    `parameter` is sharded, and its layout is that of the sum.
    """
    from torch.distributed.tensor import DTensor, Partial

    mesh, placements = _sharded(parameter).device_mesh, _sharded(parameter).placements
    partial = DTensor.from_local(value, mesh, [Partial()] * mesh.ndim, run_check=False)
    return shard(partial.redistribute(placements=placements))


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

    A plain tensor must be the same on all ranks: each cuts its shard out of it.
    """
    if same_layout(tensor, parameter):
        return tensor
    tensor = whole(tensor)
    if not is_sharded(parameter):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = _sharded(parameter).device_mesh, _sharded(parameter).placements
    copy = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return copy.redistribute(placements=placements)


def reshard(model: nn.Module) -> None:
    """Free what FSDP2 gathered: after a forward pass some modules still have whole parameters."""
    for module in _fsdp_modules(model):
        module.reshard()


def sharded_parameters(model: nn.Module) -> dict[int, nn.Parameter]:
    """Return the sharded parameters of FSDP2, by the ids of those that modules have at present.

    After a forward pass these may be whole, gathered from the shards.
    """
    sharded = {}
    for module in _fsdp_modules(model):
        state = module._get_fsdp_state()  # there is no public way to see shards without resharding
        groups = getattr(state, "_fsdp_param_groups", None)  # older versions have one
        for group in [state._fsdp_param_group] if groups is None else groups:
            for parameter in group.fsdp_params if group is not None else ():
                place = parameter._module_info
                sharded[id(getattr(place.module, place.param_name))] = parameter.sharded_param
    return sharded


def _fsdp_modules(model: nn.Module) -> list[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not torch.distributed.is_initialized():
        return []
    return [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]


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


def refuse_deepspeed(
    *,
    model: nn.Module | None = None,
    optimizer: object = None,
    parameters: Iterable[Tensor] = (),
) -> None:
    """Raise if any of these is DeepSpeed's, which is recognized without an import of it.

    Its engine is a module. Its optimizer has the user's inside, as has the wrapper that Accelerate
    puts around it. ZeRO marks each parameter that it takes over.
    """
    suspects = [optimizer, getattr(optimizer, "optimizer", None)]
    if model is not None:
        suspects += model.modules()
        parameters = [*parameters, *model.parameters()]
    marks = ("ds_id", "_hp_mapping")  # of stage 3, and of stages 1 and 2
    marked = any(hasattr(parameter, mark) for parameter in parameters for mark in marks)
    if marked or any(map(_is_deepspeed, suspects)):
        raise TypeError(NO_DEEPSPEED)


def _is_deepspeed(value: object) -> bool:
    return any(
        cls.__module__.startswith("deepspeed.runtime")
        or cls.__name__ == "DeepSpeedOptimizerWrapper"  # of Accelerate
        for cls in type(value).__mro__
    )


class _SumOfShards(torch.autograd.Function):
    """The sum over ranks, whose derivative by the own value is one."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, groups: list[Any]) -> Tensor:
        value = value.clone()
        for group in groups:
            torch.distributed.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _sharded(tensor: Tensor) -> Any:
    """Return the tensor with the methods of a `DTensor`, which have no types here."""
    return tensor


def _groups(tensor: Tensor) -> list[Any]:
    """Return the groups of ranks that have different shards of a tensor."""
    mesh, placements = _sharded(tensor).device_mesh, _sharded(tensor).placements
    return [mesh.get_group(dim) for dim, placement in enumerate(placements) if placement.is_shard()]
