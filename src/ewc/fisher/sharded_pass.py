"""One pass over the batches of all processes that a model is sharded over (FSDP2).

Layers are gathered by all processes together, so they must all run the model, forward and backward,
the same number of times. They do so one sample at a time, in turns. A process that has no sample
left runs the model on a spare one, with a gradient of zero at the output, which adds nothing.
"""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn

from ewc.fisher.batches import FisherBatch
from ewc.fisher.fisher_sums import FisherSums
from ewc.fisher.likelihood import Kind, Likelihood, cotangents, count_positions
from ewc.fisher.model_run import ModelRun
from ewc.processes import Processes


class ShardedPass:
    """Sums of squared per-sample gradients of a sharded model, one sample at a time.

    Args:
        model: the model, in eval mode.
        parameters: the parameters to differentiate by, by name.
        kind: which labels to use, see `fisher_diagonal`.
        likelihood: what the outputs mean, see `fisher_diagonal`.
        generator: the source of random labels.
        processes: those that the model is sharded over.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        kind: Kind,
        likelihood: Likelihood,
        generator: torch.Generator | None,
        processes: Processes,
    ) -> None:
        from ewc.fisher.sharded_gradients import ShardedGradients  # imports torch's FSDP

        self._kind: Kind = kind
        self._likelihood = likelihood
        self._generator = generator
        self._processes = processes
        self._gradients = ShardedGradients(model, parameters, processes)
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
        """Take part in the turns of the other processes, until all of them are done."""
        while self._take_turn(None):
            pass

    def _take_turn(self, sample: FisherBatch | None) -> bool:
        """Add one sample, or none, of each process. Returns False if none has one."""
        self._spare = self._spare or sample
        status = self._processes.exchange((sample is not None, self._spare is not None))
        if not any(is_working for is_working, _ in status):
            return False
        if not all(has_spare for _, has_spare in status):
            self._hand_out_spare(sample)
        run = sample or self._spare
        assert run is not None
        output = self._run.outputs(run)
        self._run.graph(output)
        vectors = [] if sample is None else self._cotangents(sample, output)
        passes = max(self._processes.exchange(len(vectors)))
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
        """Give the sample of one process to those that never had one."""
        offered = self._processes.exchange(sample and sample.map(Tensor.cpu))
        first = next(one for one in offered if one is not None)
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
