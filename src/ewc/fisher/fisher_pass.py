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
        joined = buffer.joined()
        try:
            output = self._run.outputs(joined)
        except Exception:  # of the user's model, which may want sorted samples, or not so many
            self._capacity = 1
            self._add_separately(buffer)
            return
        try:
            self._add_output(joined, output)
        except ValueError:
            self._add_separately(buffer)

    def _add_separately(self, buffer: BatchBuffer) -> None:
        for batch in buffer.separate():
            self._add_now(batch)

    def _add_now(self, batch: FisherBatch) -> None:
        """Add the squared gradients of a batch."""
        self._add_output(batch, self._run.outputs(batch))

    def _add_output(self, batch: FisherBatch, output: Tensor) -> None:
        """Add the squared gradients of a batch, given the model's output for it."""
        graph = self._run.graph(output)
        if not self._capacity:
            fitting = JOINED_ELEMENTS * batch.size // max(graph.elements, 1)
            self._capacity = max(1, min(JOINED_SAMPLES, fitting))
        if self._kind == "exact":
            self._checks.refuse_nonlinear(batch, output, graph)
        if batch.size == 1:
            self._add_alone(batch, output)
        elif self._add_with_rules(batch, output, graph):
            self._count(batch, output)
        else:
            for n in range(batch.size):
                sample = batch.take(n, n + 1)
                self._add_alone(sample, self._run.outputs(sample))

    def _add_alone(self, sample: FisherBatch, output: Tensor) -> None:
        """Add a batch of one sample, which may have another length than in its batch."""
        vectors = list(self._cotangents(sample, output))
        self._add_sample(self.sums.totals, output, vectors)
        self._count(sample, output)

    def _count(self, batch: FisherBatch, output: Tensor) -> None:
        positions = count_positions(output, batch.targets, batch.mask, self._likelihood)
        self.sums.count(batch.size, positions)

    def _add_with_rules(self, batch: FisherBatch, output: Tensor, graph: Graph) -> bool:
        """Add a batch with one backward pass per cotangent, and rules where the plan has them.

        Returns False, with nothing added, if samples mix or the graph can no longer be used.
        """
        plan = self._plan(batch, output, graph)
        if plan is None:
            return False
        vectors = iter(self._cotangents(batch, output))
        first = next(vectors)
        with torch.no_grad():
            try:
                squares = self._batch_sums(self.sums.totals, graph, plan, batch.size)
                squares.use_no_rule_for(self._checks.mismatches(batch, squares, output))
                rest = list(vectors) if plan.one_by_one else vectors
                kept = [first, *rest] if plan.one_by_one else []
                others = self._without_rules(batch, output, plan.one_by_one, kept)
                grads = squares.backward(output, first)
            except RuntimeError as error:
                if _is_spoiled(error):
                    return False
                raise
            if others is None:
                self._checks.note_mixing(batch, output, graph)
                return False
            squares.add(grads)
            del grads  # they are as large as all results of the batch
            for vector in rest:
                squares.add(squares.backward(output, vector))
            squares.finish()
            for name, total in others.items():
                self.sums.totals[name].add_(total)
        return True

    def _without_rules(
        self, batch: FisherBatch, output: Tensor, names: list[str], vectors: Iterable[Tensor]
    ) -> dict[str, Tensor] | None:
        """Return the sums of some parameters, one sample at a time.

        None if a sample alone has an output of another shape than in its batch.
        """
        totals = {name: self._run.zeros(name) for name in names}
        for n in range(batch.size if names else 0):
            with torch.enable_grad():
                alone = batch.take(n, n + 1).outputs(self._run.model)
            if alone.shape[1:] != output.shape[1:]:
                return None
            self._add_sample(totals, alone, [vector[n : n + 1] for vector in vectors])
        return totals

    def _plan(self, batch: FisherBatch, output: Tensor, graph: Graph) -> Plan | None:
        """Return how to compute a batch; None if samples mix or the graph cannot be used."""
        try:
            return self._checks.plan(batch, output, graph)
        except RuntimeError as error:
            if _is_spoiled(error):
                return None
            raise

    def _add_sample(self, totals: dict[str, Tensor], output: Tensor, vectors: list[Tensor]) -> None:
        """Add the squared gradients of one sample to some totals, given its output."""
        for grads in self._run.sample_gradients(output, list(totals), vectors):
            for name, grad in grads.items():
                totals[name].addcmul_(grad, grad)

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


def _is_spoiled(error: RuntimeError) -> bool:
    """Whether the checks, which run the model again, changed what a graph had saved."""
    return "modified by an inplace operation" in str(error)
