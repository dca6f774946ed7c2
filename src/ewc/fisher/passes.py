"""One pass over batches, which sums the squared per-sample gradients.

Each batch is run once. Its graph shows where each parameter is used, and rules turn the inputs and
output gradients of those operations into sums of squares. What no rule covers is done one sample at
a time.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ewc.diagnostics import warn
from ewc.distributed.ranks import Ranks
from ewc.distributed.shards import is_sharded, shard, total
from ewc.fisher.batches import FisherBatch
from ewc.fisher.likelihood import Kind, Likelihood, Positions, cotangents, count_positions
from ewc.fisher.model import ModelRun
from ewc.fisher.per_sample.checks import BatchChecks
from ewc.fisher.per_sample.graph import Graph
from ewc.fisher.per_sample.plan import Plan, Probe
from ewc.fisher.per_sample.sums import BatchSquares


@dataclass
class FisherSums:
    """Sums of squared per-sample gradients, and what they are divided by.

    Attributes:
        totals: the sums, one tensor per parameter. Plain ones are of this rank's samples,
            sharded ones are shards of the sums over the samples of all ranks.
        samples: number of samples of this rank.
        positions: number of positions that count in these samples.
    """

    totals: dict[str, Tensor]
    samples: int = 0
    positions: int = 0

    def count(self, samples: int, positions: int) -> None:
        """Count some more samples, and the positions in them."""
        self.samples += samples
        self.positions += positions

    def mean(
        self, ranks: Ranks, max_samples: int | None, positions: Positions
    ) -> dict[str, Tensor]:
        """Return the sums divided by the number of positions or samples of all ranks.

        Raises if they are not finite.
        """
        divisor = self.divisor(ranks, max_samples, positions)
        for name, sums in self.totals.items():
            if not is_sharded(sums):
                ranks.sum_(sums)
            shard(sums).div_(divisor)
            if not bool(total(sums).isfinite()):
                raise ValueError(
                    f"the Fisher of {name!r} is not finite: its gradients overflow or are NaN"
                )
        return self.totals

    def divisor(self, ranks: Ranks, max_samples: int | None, positions: Positions) -> int:
        """Return the number of positions or samples of all ranks; raise if there are none."""
        samples, counted = ranks.sum(self.samples, self.positions)
        if samples == 0:
            raise ValueError("batches is empty: the Fisher needs at least one sample")
        if max_samples is not None and samples < max_samples:
            warn(f"batches ended after {samples} samples, before max_samples={max_samples}")
        if counted == 0:
            raise ValueError("no position counts: every label is -100, or every token is masked")
        return counted if positions == "mean" else samples


class BatchBuffer:
    """Up to `capacity` samples from batches like `first`.

    Samples are copied as soon as they are added, because a loader may reuse its tensors.

    Attributes:
        size: number of samples in the buffer.
    """

    def __init__(self, first: FisherBatch, capacity: int) -> None:
        self.capacity = capacity
        self._samples = first.map(lambda tensor: tensor.new_empty(capacity, *tensor.shape[1:]))
        self._structure = first.structure
        self._parts: list[tuple[str, int]] = []  # name and size of each batch
        self.size = 0

    def accepts(self, batch: FisherBatch) -> bool:
        """Whether there is room for the batch, and it differs in nothing but its samples."""
        return bool(self.size + batch.size <= self.capacity and self._structure == batch.structure)

    def add(self, batch: FisherBatch) -> None:
        """Copy a batch to the end of the buffer."""
        start = self.size
        for buffer, tensor in zip(self._samples.tensors, batch.tensors, strict=True):
            buffer[start : start + batch.size].copy_(tensor)
        self._parts.append((batch.where, batch.size))
        self.size += batch.size

    def clear(self) -> None:
        """Make room for other samples."""
        self._parts, self.size = [], 0

    def joined(self) -> FisherBatch:
        """Return all samples as one batch."""
        first, last = self._parts[0][0], self._parts[-1][0]
        return replace(
            self._samples.take(0, self.size),
            where=first if first == last else f"{first} to {last}",
            was_single=all(size == 1 for _, size in self._parts),
        )

    def separate(self) -> Iterator[FisherBatch]:
        """Yield the batches as they were added."""
        start = 0
        for where, size in self._parts:
            yield replace(self._samples.take(start, start + size), where=where)
            start += size


# Batches are joined up to this many samples, or elements of their tensors, or in all results of a
# graph (32 MB). Each joined batch costs 2 ms beside its arithmetic. With one backward pass per
# output, results pass through the cache so many times that fewer samples are faster.
JOINED_SAMPLES = 4096
JOINED_SAMPLES_EXACT = 1024
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

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        kind: Kind,
        likelihood: Likelihood,
        generator: torch.Generator | None,
    ) -> None:
        # glibc gives freed memory back to the system beyond twice the largest block freed before,
        # up to 32 MB of it, and a batch pays 3 µs for each page that it gets anew: 5 % of the
        # Fisher of a small network. This block is freed at once and never touched.
        torch.empty(31 * 2**20, dtype=torch.uint8)
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
        joinable, waiting = batch.joinable, self._buffer.size if self._buffer else 0
        if waiting and self._buffer and not (joinable and self._buffer.accepts(batch)):
            self.flush()
            waiting = 0
        if not waiting and (not joinable or 2 * batch.size > self._capacity):
            self._add_now(batch)
            return
        if self._buffer is None or not self._buffer.accepts(batch):
            self._buffer = BatchBuffer(batch, self._capacity)
        self._buffer.add(batch)

    def flush(self) -> None:
        """Add the batches that are waiting.

        An error has to name one batch, so after an error they are added one by one.
        """
        buffer = self._buffer
        if buffer is None or not buffer.size:
            return
        try:
            self._add_joined(buffer)
        finally:
            buffer.clear()  # its memory is used again: new memory costs more than the copies

    def _add_joined(self, buffer: BatchBuffer) -> None:
        joined = buffer.joined()
        try:
            probe = self._run.probe(joined)
        except Exception:  # of the user's model, which may want sorted samples, or not so many
            self._capacity = 1
            self._add_separately(buffer)
            return
        try:
            self._add_output(joined, probe)
        except ValueError:
            self._add_separately(buffer)

    def _add_separately(self, buffer: BatchBuffer) -> None:
        for batch in buffer.separate():
            self._add_now(batch)

    def _add_now(self, batch: FisherBatch) -> None:
        """Add the squared gradients of a batch."""
        self._add_output(batch, self._run.probe(batch))

    def _add_output(self, batch: FisherBatch, probe: Probe) -> None:
        """Add the squared gradients of a batch, given the model's output for it."""
        if not self._capacity:
            given = sum(tensor.numel() for tensor in batch.tensors)
            fitting = JOINED_ELEMENTS * batch.size // max(probe.graph.elements, given, 1)
            most = JOINED_SAMPLES_EXACT if self._kind == "exact" else JOINED_SAMPLES
            self._capacity = max(1, min(most, fitting))
        if self._kind == "exact":
            self._checks.refuse_nonlinear(batch, probe)
        if batch.size == 1:
            self._add_alone(batch, probe.output)
        elif self._add_with_rules(batch, probe):
            self._count(batch, probe.output)
        else:
            for n in range(batch.size):
                sample = batch.take(n, n + 1)
                output = self._run.alone(batch, n, "as all samples of its batch were")
                self._add_alone(sample, self._run.checked(sample, output))

    def _add_alone(self, sample: FisherBatch, output: Tensor) -> None:
        """Add a batch of one sample, which may have another length than in its batch."""
        vectors = list(self._cotangents(sample, output))
        self._add_sample(self.sums.totals, output, vectors)
        self._count(sample, output)

    def _count(self, batch: FisherBatch, output: Tensor) -> None:
        positions = count_positions(output, batch.targets, batch.mask, self._likelihood)
        self.sums.count(batch.size, positions)

    def _add_with_rules(self, batch: FisherBatch, probe: Probe) -> bool:
        """Add a batch with one backward pass per cotangent, and rules where the plan has them.

        Returns False, with nothing added, if samples mix or the graph can no longer be used.
        """
        plan, output = self._plan(batch, probe), probe.output
        if plan is None:
            return False
        vectors = iter(self._cotangents(batch, output))
        first = next(vectors)
        with torch.no_grad():
            try:
                squares = self._make_sums(probe.graph, plan, batch)
                rest = list(vectors) if plan.one_by_one else vectors
                kept = [first, *rest] if plan.one_by_one else []
                others = self._without_rules(batch, output, plan.one_by_one, kept)
                grads = squares.backward(output, first)
            except RuntimeError as error:
                if _is_spoiled(error):
                    return False
                raise
            if others is None:
                self._checks.note_mixing(batch, probe)
                return False
            squares.add(grads)
            del grads  # they are as large as all results of the batch
            for vector in rest:
                squares.add(squares.backward(output, vector))
            squares.finish()
            for name, total in others.items():
                self.sums.totals[name].add_(total)
        return True

    def _make_sums(self, graph: Graph, plan: Plan, batch: FisherBatch) -> BatchSquares:
        """Return what adds a batch to the totals."""
        return BatchSquares(self.sums.totals, graph, plan, batch.size)

    def _without_rules(
        self, batch: FisherBatch, output: Tensor, names: list[str], vectors: Iterable[Tensor]
    ) -> dict[str, Tensor] | None:
        """Return the sums of some parameters, one sample at a time.

        None if a sample alone has an output of another shape than in its batch.
        """
        totals = {name: self._run.zeros(name) for name in names}
        for n in range(batch.size if names else 0):
            with torch.enable_grad():
                alone = self._run.alone(batch, n, f"because no rule covers {names[0]!r}")
            if alone.shape[1:] != output.shape[1:]:
                return None
            self._add_sample(totals, alone, [vector[n : n + 1] for vector in vectors])
        return totals

    def _plan(self, batch: FisherBatch, probe: Probe) -> Plan | None:
        """Return how to compute a batch; None if samples mix or the graph cannot be used."""
        try:
            return self._checks.plan(batch, probe)
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
