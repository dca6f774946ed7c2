"""Permuted tasks: each task is the same images with its own fixed shuffle of the pixels.

A shuffle may be limited to a centered square; the pixels outside it stay where they are.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ewc_paper.mnist.data import PIXELS, SIDE, Data, Split
from ewc_paper.seeding import generator


def permutation(seed: int, task: int, square: int = SIDE) -> Tensor:
    """The order of the 784 pixels for one task: a shuffle within the centered square."""
    if not 1 <= square <= SIDE:
        raise ValueError(f"square must be 1 to {SIDE} pixels, got {square}")
    margin = (SIDE - square) // 2
    inside = torch.arange(PIXELS).view(SIDE, SIDE)
    inside = inside[margin : margin + square, margin : margin + square].reshape(-1)
    order = torch.arange(PIXELS)
    shuffle = torch.randperm(len(inside), generator=generator(seed, "pixels", task))
    order[inside] = inside[shuffle]
    return order


@dataclass(frozen=True)
class PermutedTasks:
    """The tasks 0, 1, 2, ... of one seed over one data set."""

    data: Data
    seed: int
    square: int = SIDE

    @cached_property
    def _order(self) -> dict[int, Tensor]:
        return {}

    def order(self, task: int) -> Tensor:
        if task not in self._order:
            order = permutation(self.seed, task, self.square)
            self._order[task] = order.to(self.data.train.images.device)
        return self._order[task]

    def permuted(self, split: Split, task: int) -> Split:
        """A copy of the split with the task's pixels."""
        # Four times as fast as indexing.
        return Split(split.images.index_select(1, self.order(task)), split.labels)

    def mixture(self, tasks: range, random: torch.Generator) -> Split:
        """The training images, each with the pixels of a task drawn evenly from `tasks`."""
        images = self.data.train.images
        drawn = torch.randint(tasks.start, tasks.stop, (len(images),), generator=random)
        drawn = drawn.to(images.device)
        mixed = torch.empty_like(images)
        for task in tasks:
            rows = (drawn == task).nonzero().squeeze(1)
            mixed[rows] = images[rows][:, self.order(task)]
        return Split(mixed, self.data.train.labels)
