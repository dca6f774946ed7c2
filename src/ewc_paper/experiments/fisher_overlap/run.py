"""Whether two tasks rely on the same weights, layer by layer (the paper's figure 3C)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ewc.fisher import fisher_diagonal
from ewc.fisher.overlap import fisher_overlap_by_layer
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.permuted_mnist import PAPER, PermutedMnist, make_tasks
from ewc_paper.mnist.config import PullConfig, TrainingConfig
from ewc_paper.mnist.data import SIDE
from ewc_paper.mnist.learner import PermutedMnistLearner
from ewc_paper.options import option
from ewc_paper.runs.engine import Part

DEEP = {"tasks": 2, "layers": 6, "width": 100, "strength": 100.0}


@dataclass(frozen=True, kw_only=True)
class FisherOverlap(RepeatedExperiment, PermutedMnist, PullConfig):
    """Fisher overlap of two tasks by depth, for small and large permuted squares (figure 3C)."""

    name = "fisher-overlap"
    presets: ClassVar[Presets] = {
        "quick": {**DEEP, "lr": 0.03, "epochs": 3, "fisher_samples": 2000},
        "laptop": {**DEEP, "lr": 0.03, "epochs": 20, "seeds": 3},
        "paper": {**DEEP, **PAPER, "lr": 1e-3, "epochs": 100, "fisher_samples": 60_000},
    }

    squares: tuple[int, ...] = option(
        (8, 26), "sides of the permuted squares", low=1, high=SIDE, common=True
    )

    def check(self) -> None:
        super().check()
        if self.tasks < 2:
            raise RunError(f"--tasks must be at least 2, got {self.tasks}")

    def _parts(self) -> Iterator[Part]:
        for square in self.squares:
            for seed in self.all_seeds:
                config = self.part_config(square=square, seed=seed)
                yield Part(f"square{square}-seed{seed}", config, make_overlap_learner)


class OverlapLearner(PermutedMnistLearner):
    """Learns its tasks, then compares their Fishers at the weights that solve them all, if any."""

    def run(self) -> Iterator[dict[str, Any] | None]:
        yield from super().run()
        if self.diverged:
            return
        fishers = [
            fisher_diagonal(self.model, self.fisher_batches(task), kind="exact")
            for task in range(self.config.tasks)
        ]
        overlaps = [
            list(fisher_overlap_by_layer(first, second).values())
            for index, first in enumerate(fishers)
            for second in fishers[index + 1 :]
        ]
        pairs = len(overlaps)
        yield {"overlap": [sum(layer) / pairs for layer in zip(*overlaps, strict=True)]}


def make_overlap_learner(config: dict[str, Any]) -> OverlapLearner:
    return OverlapLearner(make_tasks(config), TrainingConfig(**config["recipe"]))
