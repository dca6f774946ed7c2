"""The parameters of an optimizer that a memory pulls on, by group."""

from collections.abc import Iterator
from itertools import chain

from torch.optim import Optimizer

from ewc.blocks import Block
from ewc.pull_state import PullState
from ewc.sharding import shard_values, shards
from ewc.step_size.step import ParamGroup


def pulled_groups(optimizer: Optimizer, state: PullState) -> Iterator[tuple[ParamGroup, list[str]]]:
    """Yield the groups that move protected weights, and the names of these."""
    names: dict[int, list[str]] = {}
    for name in state.well.precision:
        for parameter in state.moved_by(name):
            if parameter.requires_grad:
                names.setdefault(id(parameter), []).append(name)
    for group in optimizer.param_groups:
        found = (names.get(id(parameter), ()) for parameter in group["params"])
        if in_group := list(dict.fromkeys(chain.from_iterable(found))):
            yield group, in_group


def pulled_blocks(optimizer: Optimizer, state: PullState) -> Iterator[tuple[ParamGroup, Block]]:
    """Yield each group that has protected parameters, with all of these in one block."""
    for group, names in pulled_groups(optimizer, state):
        parameters = shards(state.parameters[name] for name in names)
        block = Block(
            parameters,
            [parameter.grad is not None for parameter in parameters],
            [shard_values(optimizer.state.get(state.parameters[name], {})) for name in names],
            shards(state.well.precision[name] for name in names),
            shards(state.well.anchor[name] for name in names),
        )
        yield {**group, "lr": float(group["lr"])}, block  # read once, in case it is on a device
