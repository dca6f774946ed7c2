"""The squared gradients of a sharded model, taken layer by layer while a backward pass runs.

FSDP2 gathers the parameters of a layer for its forward and backward and frees them afterwards. The
gradient of such a gathered parameter is squared as soon as it is there, summed over the processes,
and only this process's shard of the sum is kept. No more is ever gathered than in training.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ewc.dtypes import at_least_float32, widened
from ewc.processes import Processes
from ewc.sharding import is_sharded, shard, summed_like


class ShardedGradients:
    """In its `with` block, each `backward()` adds the squares of all gradients to the totals.

    The gradients themselves are dropped. All processes must run the same backward passes.

    Args:
        model: the model, with all of its parameters in shards.
        parameters: the parameters to differentiate by, by name.
        processes: those that the model is sharded over.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], processes: Processes
    ) -> None:
        self.totals: dict[str, Tensor] = {
            name: torch.zeros_like(p, dtype=at_least_float32(p.dtype), requires_grad=False)
            for name, p in parameters.items()
        }
        self.gathered = gathered_parameters(model)
        self.active = True  # whether this process adds anything; all take part in the sums
        self._model, self._parameters, self._processes = model, parameters, processes
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        trainable = {name: p for name, p in self.gathered.items() if p.requires_grad}
        # FSDP keeps gradients that it has not reduced yet in the gathered parameters.
        for parameter in (*self._model.parameters(), *trainable.values()):
            self._stack.callback(setattr, parameter, "grad", parameter.grad)
            parameter.grad = None
        for name, parameter in trainable.items():
            hook = parameter.register_post_accumulate_grad_hook(self._taker(name))
            self._stack.callback(hook.remove)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _taker(self, name: str) -> Callable[[Tensor], None]:
        """Return the hook that takes the gradient of a gathered parameter."""

        def take(gathered: Tensor) -> None:
            gradient, gathered.grad = gathered.grad, None
            if name in self._parameters and gradient is not None:
                dense = widened(gradient.to_dense() if gradient.is_sparse else gradient)
                self._add(name, dense.square() if self.active else torch.zeros_like(dense))

        return take

    def _add(self, name: str, squares: Tensor) -> None:
        parameter, sums = self._parameters[name], shard(self.totals[name])
        if is_sharded(parameter):
            squares = summed_like(squares, parameter)
        else:  # one that FSDP was told to ignore
            self._processes.sum_(squares)
        sums.add_(squares.to(sums.device))


def gathered_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are there while a layer is gathered, by the names of all.

    These are what the graph of a forward pass has. Each layer is gathered for a moment.
    """
    found = dict(model.named_parameters())
    for prefix, layer in model.named_modules():
        if not isinstance(layer, FSDPModule):
            continue
        layer.unshard()
        for name, parameter in model.get_submodule(prefix).named_parameters(prefix):
            if not is_sharded(parameter):
                found[name] = parameter
        layer.reshard()
    return found
