"""Small batches gathered into one: a pass over few samples is mostly overhead."""

from collections.abc import Iterator
from dataclasses import replace

from ewc.fisher.batches import Batch


class Gathering:
    """Up to `room` samples of batches like `first`, copied into memory of their own.

    They are copied at once because a loader may fill the same tensors anew.
    """

    def __init__(self, first: Batch, room: int) -> None:
        self.room = room
        self.memory = first.map(lambda tensor: tensor.new_empty(room, *tensor.shape[1:]))
        self.parts: list[tuple[str, int]] = []

    @property
    def size(self) -> int:
        """The samples gathered so far."""
        return sum(size for _, size in self.parts)

    def takes(self, batch: Batch) -> bool:
        """Whether there is room for the batch, and it differs in nothing but its samples."""
        return self.size + batch.size <= self.room and self.memory.fits(batch)

    def add(self, batch: Batch) -> None:
        """Copy a batch to the end."""
        start = self.size
        for mine, theirs in zip(self.memory.tensors, batch.tensors, strict=True):
            mine[start : start + batch.size].copy_(theirs)
        self.parts.append((batch.where, batch.size))

    def together(self) -> Batch:
        """All samples as one batch."""
        where = f"{self.parts[0][0]} to {self.parts[-1][0]}"
        return replace(self.memory.take(0, self.size), where=where)

    def one_by_one(self) -> Iterator[Batch]:
        """The batches as they came."""
        start = 0
        for where, size in self.parts:
            yield replace(self.memory.take(start, start + size), where=where)
            start += size
