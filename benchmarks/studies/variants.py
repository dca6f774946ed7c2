"""Four kinds of Fisher on permuted MNIST: average accuracy after ten tasks, and time.

Three are ours. The fourth squares the gradient of the mean loss of a batch, as several libraries
do. Its values are smaller for larger batches, so it is measured with two strengths: the same as
the others, and that times the batch size.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from torch.nn.functional import cross_entropy

from benchmarks.measure import one_thread
from ewc.fisher.likelihood import Kind
from ewc_paper.mnist.config import TrainingConfig
from ewc_paper.mnist.data import PermutedTasks, load
from ewc_paper.mnist.learner import FISHER_BATCH, PermutedMnistLearner

TASKS = 10
CONFIG = TrainingConfig(tasks=TASKS, epochs=1)


class TimedLearner(PermutedMnistLearner):
    """Notes how long its Fishers take, in seconds of one core."""

    fisher_seconds = 0.0

    def _remember(self) -> None:
        start = time.process_time()
        self._consolidate()
        self.fisher_seconds += time.process_time() - start

    def _consolidate(self) -> None:
        super()._remember()


class BatchSquared(TimedLearner):
    """Squares the mean gradient of each batch instead of the gradient of each sample."""

    def _consolidate(self) -> None:
        fisher = {name: w.detach().clone().zero_() for name, w in self.model.named_parameters()}
        batches = list(self.fisher_batches(self.task))
        for images, labels in batches:
            self.model.zero_grad()
            cross_entropy(self.model(images), labels).backward()
            for name, w in self.model.named_parameters():
                assert w.grad is not None
                fisher[name] += w.grad.square() / len(batches)
        self.memory.anchor(fisher, task=str(self.task))


def variants(tasks: PermutedTasks) -> Iterator[tuple[str, TimedLearner]]:
    for kind in get_args(Kind):
        yield kind, TimedLearner(tasks, replace(CONFIG, kind=kind))
    yield "batch-squared", BatchSquared(tasks, CONFIG)
    stronger = replace(CONFIG, strength=CONFIG.strength * FISHER_BATCH)
    yield f"batch-squared, λ x {FISHER_BATCH}", BatchSquared(tasks, stronger)


def main() -> None:
    one_thread()
    tasks = PermutedTasks(load(), seed=0)
    print(f"Four Fishers, 2x400, {TASKS} tasks: average accuracy, seconds per Fisher")
    for name, learner in variants(tasks):
        rows = [row for row in learner.run() if row]
        average = sum(rows[-1]["accuracy"]) / len(rows[-1]["accuracy"])
        seconds = learner.fisher_seconds / TASKS
        print(f"  {name:24} {100 * average:6.2f} %  {seconds:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
