"""One pass over the batches of all ranks that a model is sharded over (FSDP2).

Layers are gathered by all ranks together, so they must all run the model, forward and backward,
the same number of times. They do so one sample at a time, in turns. A rank that has no sample
left runs the model on a spare one, with a gradient of zero at the output, which adds nothing.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self

import torch
from torch import Tensor, nn

from ewc.distributed.ranks import Ranks
from ewc.distributed.shards import is_sharded, shard, summed_like
from ewc.fisher.batches import FisherBatch
from ewc.fisher.likelihood import Kind, Likelihood, cotangents, count_positions
from ewc.fisher.model import ModelRun
from ewc.fisher.passes import FisherSums
from ewc.parameters import at_least_float32, widened


class ShardedGradients:
    """In its `with` block, each `backward()` adds the squares of all gradients to the totals.

    The gradients themselves are dropped. All ranks must run the same backward passes.

    Args:
        model: the model, with all of its parameters in shards.
        parameters: the parameters to differentiate by, by name.
        ranks: those that the model is sharded over.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], ranks: Ranks
    ) -> None:
        self.totals: dict[str, Tensor] = {
            name: torch.zeros_like(p, dtype=at_least_float32(p.dtype), requires_grad=False)
            for name, p in parameters.items()
        }
        self.gathered = gathered_parameters(model)
        self.active = True  # whether this rank adds anything; all take part in the sums
        self._model, self._parameters, self._ranks = model, parameters, ranks
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
            self._ranks.sum_(squares)
        sums.add_(squares.to(sums.device))


def gathered_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are there while a layer is gathered, by the names of all.

    These are what the graph of a forward pass has. Each layer is gathered for a moment.
    """
    from torch.distributed.fsdp import FSDPModule  # takes most of a second to import

    gathered = dict(model.named_parameters())
    for prefix, layer in model.named_modules():
        if not isinstance(layer, FSDPModule):
            continue
        layer.unshard()
        for name, parameter in model.get_submodule(prefix).named_parameters(prefix):
            if not is_sharded(parameter):
                gathered[name] = parameter
        layer.reshard()
    return gathered


class ShardedPass:
    """Sums of squared per-sample gradients of a sharded model, one sample at a time.

    Args:
        model: the model, in eval mode.
        parameters: the parameters to differentiate by, by name.
        kind: which labels to use, see `fisher_diagonal`.
        likelihood: what the outputs mean, see `fisher_diagonal`.
        generator: the source of random labels.
        ranks: those that the model is sharded over.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        kind: Kind,
        likelihood: Likelihood,
        generator: torch.Generator | None,
        ranks: Ranks,
    ) -> None:

        self._kind: Kind = kind
        self._likelihood = likelihood
        self._generator = generator
        self._ranks = ranks
        self._gradients = ShardedGradients(model, parameters, ranks)
        # What a callable gets is the whole output, of which only one tensor is passed on here.
        self._run = ModelRun(model, self._gradients.gathered, one_output=callable(likelihood))
        self._device = next(iter(parameters.values())).device
        self._spare: FisherBatch | None = None
        self.sums = FisherSums(self._gradients.totals)

    def __enter__(self) -> Self:
        self._gradients.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._gradients.__exit__(*exception)

    def add(self, batch: FisherBatch) -> None:
        """Add a batch, in as many turns as it has samples."""
        for n in range(batch.size):
            self._take_turn(batch.take(n, n + 1))

    def flush(self) -> None:
        """Take part in the turns of the other ranks, until all of them are done."""
        while self._take_turn(None):
            pass

    def _take_turn(self, sample: FisherBatch | None) -> bool:
        """Add one sample, or none, of each rank. Returns False if none has one."""
        self._spare = self._spare or sample
        status = self._ranks.exchange((sample is not None, self._spare is not None))
        if not any(is_working for is_working, _ in status):
            return False
        if not all(has_spare for _, has_spare in status):
            self._hand_out_spare(sample)
        run = sample or self._spare
        assert run is not None
        output = self._run.outputs(run)
        self._run.graph(output)
        vectors = [] if sample is None else self._cotangents(sample, output)
        passes = max(self._ranks.exchange(len(vectors)))
        for number in range(passes):
            self._gradients.active = number < len(vectors)
            vector = vectors[number] if self._gradients.active else torch.zeros_like(output)
            torch.autograd.backward(
                output, vector.to(output.dtype), retain_graph=number < passes - 1
            )
        if sample is not None:
            self.sums.count(
                1, count_positions(output, sample.targets, sample.mask, self._likelihood)
            )
        return True

    def _hand_out_spare(self, sample: FisherBatch | None) -> None:
        """Give the sample of one rank to those that never had one."""
        offered = self._ranks.exchange(sample and sample.map(Tensor.cpu))
        first = next(spare for spare in offered if spare is not None)
        self._spare = self._spare or first.map(lambda tensor: tensor.to(self._device))

    def _cotangents(self, sample: FisherBatch, output: Tensor) -> list[Tensor]:
        return list(
            cotangents(
                output,
                sample.targets,
                sample.mask,
                kind=self._kind,
                likelihood=self._likelihood,
                generator=self._generator,
                where=sample.where,
            )
        )
