"""Four kinds of Fisher on permuted MNIST: average accuracy after ten tasks, and time.

Three are ours. The fourth squares the gradient of the mean loss of a batch, as several libraries
do. Its values are smaller for larger batches, so it is measured with two strengths: the same as
the others, and that times the batch size.
"""

import time
from collections.abc import Iterator
from typing import Any

from torch.nn.functional import cross_entropy

from benchmarks.timing import one_thread
from ewc_paper.mnist.config import Recipe
from ewc_paper.mnist.data import load
from ewc_paper.mnist.learner import FISHER_BATCH, Learner
from ewc_paper.mnist.tasks import PermutedTasks

RECIPE: dict[str, Any] = {
    "tasks": 10,
    "epochs": 1,
    "batch_size": 64,
    "lr": 0.1,
    "average": 0.5,
    "strength": 30.0,
}


class TimedLearner(Learner):
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
    for kind in ("exact", "sampled", "empirical"):
        yield kind, TimedLearner(tasks, Recipe(**RECIPE, kind=kind))
    yield "batch-squared", BatchSquared(tasks, Recipe(**RECIPE))
    stronger = RECIPE | {"strength": RECIPE["strength"] * FISHER_BATCH}
    yield f"batch-squared, λ x {FISHER_BATCH}", BatchSquared(tasks, Recipe(**stronger))


def main() -> None:
    one_thread()
    tasks = PermutedTasks(load(), seed=0)
    print(f"Four Fishers, 2x400, {RECIPE['tasks']} tasks: average accuracy, seconds a Fisher")
    for name, learner in variants(tasks):
        rows = [row for row in learner.run() if row]
        average = sum(rows[-1]["accuracy"]) / len(rows[-1]["accuracy"])
        seconds = learner.fisher_seconds / RECIPE["tasks"]
        print(f"  {name:24} {100 * average:6.2f} %  {seconds:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
