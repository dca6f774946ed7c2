"""One pass over batches, which sums the squared per-sample gradients.

Each batch is run once. Its graph shows where each parameter is used, and rules turn the inputs and
output gradients of those operations into sums of squares. What no rule covers is done one sample at
a time.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ewc.fisher.autograd.graph import Graph
from ewc.fisher.autograd.plan import Plan
from ewc.fisher.batch_checks import BatchChecks
from ewc.fisher.batch_joining import BatchBuffer
from ewc.fisher.batch_squares import BatchSquares
from ewc.fisher.batches import FisherBatch
from ewc.fisher.fisher_sums import FisherSums
from ewc.fisher.likelihood import Kind, Likelihood, cotangents, count_positions
from ewc.fisher.model_run import ModelRun

# Batches are joined up to this many samples, or elements in all results of a graph (32 MB).
JOINED_SAMPLES = 1024
JOINED_ELEMENTS = 2**23


class FisherPass:
    """Sums of squared per-sample gradients, batch by batch.

    Args:
        model: the model, in eval mode.
        parameters: the parameters to differentiate by, by name.
        kind: which labels to use, see `fisher_diagonal`.
        likelihood: what the outputs mean, see `fisher_diagonal`.
        generator: the source of random labels.
    """

    _batch_sums = BatchSquares

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        kind: Kind,
        likelihood: Likelihood,
        generator: torch.Generator | None,
    ) -> None:
        self._kind: Kind = kind
        self._likelihood = likelihood
        self._generator = generator
        self._run = ModelRun(model, parameters)
        self._checks = BatchChecks(self._run)
        self.sums = FisherSums({name: self._run.zeros(name) for name in parameters})
        self._buffer: BatchBuffer | None = None
        self._capacity = 0  # samples that may be joined; known after the first batch

    def add(self, batch: FisherBatch) -> None:
        """Add a batch, now or together with the next ones."""
        joinable = batch.joinable
        if self._buffer is not None and not (joinable and self._buffer.accepts(batch)):
            self.flush()
        if self._buffer is None and (not joinable or 2 * batch.size > self._capacity):
            self._add_now(batch)
            return
        if self._buffer is None:
            self._buffer = BatchBuffer(batch, self._capacity)
        self._buffer.add(batch)

    def flush(self) -> None:
        """Add the batches that are waiting.

        An error has to name one batch, so after an error they are added one by one.
        """
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        try:
            self._add_now(buffer.joined())
        except ValueError:
            for batch in buffer.separate():
                self._add_now(batch)

    def _add_now(self, batch: FisherBatch) -> None:
        """Add the squared gradients of a batch."""
        output = self._run.outputs(batch)
        graph = self._run.graph(output)
        if not self._capacity:
            fitting = JOINED_ELEMENTS * batch.size // max(graph.elements, 1)
            self._capacity = max(1, min(JOINED_SAMPLES, fitting))
        names = list(self.sums.totals)
        if batch.size == 1:
            self._add_sample(output, names, list(self._cotangents(batch, output)))
        else:
            plan = self._checks.plan(batch, output, graph)
            if plan is None or not self._add_with_rules(batch, output, graph, plan):
                for n in range(batch.size):
                    sample = batch.take(n, n + 1)
                    alone = self._run.outputs(sample)
                    self._add_sample(alone, names, list(self._cotangents(sample, alone)))
        positions = count_positions(output, batch.targets, batch.mask, self._likelihood)
        self.sums.count(batch.size, positions)

    def _add_with_rules(self, batch: FisherBatch, output: Tensor, graph: Graph, plan: Plan) -> bool:
        """Add a batch with one backward pass per cotangent, and rules where the plan has them.

        Returns False, with nothing added, if the graph can no longer be used.
        """
        vectors = iter(self._cotangents(batch, output))
        first = next(vectors)
        # That of `exact` is zero except at one position, and everywhere if its class is impossible.
        probe = _nowhere_zero(output) if self._kind == "exact" else first
        with torch.no_grad():
            squares = self._batch_sums(self.sums.totals, graph, plan, batch.size)
            try:
                mismatches = self._checks.mismatches(batch, squares, output, probe)
                grads = squares.backward(output, first)
            except RuntimeError as error:
                if "modified by an inplace operation" in str(error):
                    return False  # the checks ran the model again, which changed what is saved
                raise
            squares.use_no_rule_for(mismatches)
            rest = list(vectors) if plan.one_by_one else vectors
            squares.add(grads)
            del grads  # they are as large as all results of the batch
            for vector in rest:
                squares.add(squares.backward(output, vector))
            squares.finish()
        del squares
        if plan.one_by_one:
            for n in range(batch.size):
                of_sample = [vector[n : n + 1] for vector in (first, *rest)]
                alone = batch.take(n, n + 1).outputs(self._run.model)
                self._add_sample(alone, plan.one_by_one, of_sample)
        return True

    def _add_sample(self, output: Tensor, names: list[str], vectors: list[Tensor]) -> None:
        """Add the squared gradients of one sample, given its output, without rules."""
        for grads in self._run.sample_gradients(output, names, vectors):
            for name, grad in grads.items():
                self.sums.totals[name].addcmul_(grad, grad)

    def _cotangents(self, batch: FisherBatch, output: Tensor) -> Iterable[Tensor]:
        return cotangents(
            output,
            batch.targets,
            batch.mask,
            kind=self._kind,
            likelihood=self._likelihood,
            generator=self._generator,
            where=batch.where,
        )


def _nowhere_zero(output: Tensor) -> Tensor:
    """Return a gradient at the output that no parameter's gradient can hide from."""
    return torch.linspace(1, 2, output.numel(), device=output.device).view(output.shape)
