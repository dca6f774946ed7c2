"""Parameters in blocks that fit a processor's cache.

The pull takes about ten operations. On whole parameters each of them would read and write main
memory; block by block the operations meet their numbers in the cache, and main memory is read and
written once. What is computed on the way needs the memory of one block, not of the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

ParamState = Mapping[str, Any]  # what `optimizer.state` has for one parameter

CPU_BLOCK = 2**18  # numbers per thread: a megabyte of each tensor
DEVICE_BLOCK = 2**24  # on other devices, where a block costs some ten kernel launches


class Block(NamedTuple):
    """Pieces of parameters, and the same pieces of what belongs to them.

    Attributes:
        parameters: θ, as views that can be changed in place.
        gradients: whether each has a gradient, so that the optimizer moved it.
        states: the optimizer's state of each.
        precisions: P of each.
        anchors: m of each.
    """

    parameters: list[Tensor]
    gradients: list[bool]
    states: list[ParamState]
    precisions: list[Tensor]
    anchors: list[Tensor]

    def only(self, chosen: Sequence[int]) -> "Block":
        """Return the block with the chosen entries alone."""
        picked: Any = ([entries[index] for index in chosen] for entries in self)
        return Block(*picked)

    def cut(self, *, whole: bool = False) -> Iterator["Block"]:
        """Yield this in blocks that fit the cache, small parameters together.

        Args:
            whole: do not cut any parameter.
        """
        size = block_size(self.parameters[0].device) if self.parameters else 0
        pieces: list[tuple[Any, ...]] = []
        numbers = 0
        for row in zip(*self, strict=True):
            for piece in [row] if whole else _pieces(*row, size):
                if numbers + piece[0].numel() > size and numbers > 0:
                    yield Block(*map(list, zip(*pieces, strict=True)))
                    pieces, numbers = [], 0
                pieces.append(piece)
                numbers += piece[0].numel()
        if pieces:
            yield Block(*map(list, zip(*pieces, strict=True)))


def block_size(device: torch.device) -> int:
    """Return how many numbers a block should have: each thread works on its part of a block."""
    return CPU_BLOCK * torch.get_num_threads() if device.type == "cpu" else DEVICE_BLOCK


def _pieces(
    parameter: Tensor,
    gradient: bool,
    state: ParamState,
    precision: Tensor,
    anchor: Tensor,
    size: int,
) -> Iterator[tuple[Tensor, bool, ParamState, Tensor, Tensor]]:
    """Cut along the first dimension, which gives views whatever the strides are."""
    if parameter.numel() <= size:
        yield parameter, gradient, state, precision, anchor
        return
    rows = parameter.shape[0]
    step = max(1, size * rows // parameter.numel())
    for start in range(0, rows, step):
        count = min(step, rows - start)
        part, p, m = (tensor.narrow(0, start, count) for tensor in (parameter, precision, anchor))
        part_state = {
            key: value.narrow(0, start, count)
            if isinstance(value, Tensor) and value.shape == parameter.shape
            else value
            for key, value in state.items()
        }
        yield part, gradient, part_state, p, m
