"""Batches put side by side come out as one, or as they went in."""

import torch
from torch import Tensor

from ewc.fisher.batch_joining import BatchBuffer
from ewc.fisher.batches import FisherBatch


def batch(x: Tensor, name: str = "batch", **kwargs: object) -> FisherBatch:
    return FisherBatch((x,), kwargs, torch.arange(len(x)), None, len(x), name)


def test_batches_are_joined_in_order() -> None:
    first, second = torch.randn(2, 3), torch.randn(1, 3)
    buffer = BatchBuffer(batch(first), 5)
    buffer.add(batch(first, "batch 4"))
    buffer.add(batch(second, "batch 5"))
    joined = buffer.joined()
    assert torch.equal(joined.args[0], torch.cat([first, second]))
    assert joined.targets.tolist() == [0, 1, 0]
    assert (joined.size, joined.where) == (3, "batch 4 to batch 5")


def test_batches_come_out_as_they_went_in() -> None:
    parts = [torch.randn(2, 3), torch.randn(1, 3), torch.randn(3, 3)]
    buffer = BatchBuffer(batch(parts[0]), 6)
    for n, part in enumerate(parts):
        buffer.add(batch(part, f"batch {n}"))
    for n, (one, part) in enumerate(zip(buffer.separate(), parts, strict=True)):
        assert torch.equal(one.args[0], part)
        assert (one.size, one.where) == (len(part), f"batch {n}")


def test_samples_are_copied_at_once() -> None:
    x = torch.ones(2, 3)
    buffer = BatchBuffer(batch(x), 4)
    buffer.add(batch(x))
    x.zero_()
    assert bool((buffer.joined().args[0] == 1).all())


def test_a_batch_is_accepted_if_it_fits_and_is_alike() -> None:
    buffer = BatchBuffer(batch(torch.randn(2, 3), scale=2.0), 4)
    buffer.add(batch(torch.randn(2, 3), scale=2.0))
    assert buffer.accepts(batch(torch.randn(2, 3), scale=2.0))
    assert not buffer.accepts(batch(torch.randn(3, 3), scale=2.0))  # too many samples
    assert not buffer.accepts(batch(torch.randn(2, 4), scale=2.0))  # another shape
    assert not buffer.accepts(batch(torch.randn(2, 3).double(), scale=2.0))  # another type
    assert not buffer.accepts(batch(torch.randn(2, 3), scale=3.0))  # another argument
    assert not buffer.accepts(batch(torch.randn(2, 3)))  # none
