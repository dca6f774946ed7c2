"""Small batches joined into one, because a pass over a few samples is mostly overhead."""

from collections.abc import Iterator
from dataclasses import replace

from ewc.fisher.batches import FisherBatch


class BatchBuffer:
    """Up to `capacity` samples from batches like `first`.

    Samples are copied as soon as they are added, because a loader may reuse its tensors.
    """

    def __init__(self, first: FisherBatch, capacity: int) -> None:
        self.capacity = capacity
        self._samples = first.map(lambda tensor: tensor.new_empty(capacity, *tensor.shape[1:]))
        self._parts: list[tuple[str, int]] = []  # name and size of each batch

    @property
    def size(self) -> int:
        """Number of samples in the buffer."""
        return sum(size for _, size in self._parts)

    def accepts(self, batch: FisherBatch) -> bool:
        """Whether there is room for the batch, and it differs in nothing but its samples."""
        return self.size + batch.size <= self.capacity and self._samples.is_like(batch)

    def add(self, batch: FisherBatch) -> None:
        """Copy a batch to the end of the buffer."""
        start = self.size
        for buffer, tensor in zip(self._samples.tensors, batch.tensors, strict=True):
            buffer[start : start + batch.size].copy_(tensor)
        self._parts.append((batch.where, batch.size))

    def joined(self) -> FisherBatch:
        """Return all samples as one batch."""
        where = f"{self._parts[0][0]} to {self._parts[-1][0]}"
        return replace(self._samples.take(0, self.size), where=where)

    def separate(self) -> Iterator[FisherBatch]:
        """Yield the batches as they were added."""
        start = 0
        for where, size in self._parts:
            yield replace(self._samples.take(start, start + size), where=where)
            start += size
