"""Whether two tasks rely on the same weights, layer by layer (the paper's figure 3C)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ewc.fisher import fisher_diagonal
from ewc.fisher.overlap import fisher_overlap_by_layer
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.permuted_mnist import PAPER, PermutedMnist, make_tasks
from ewc_paper.mnist.config import Recipe
from ewc_paper.mnist.data import SIDE
from ewc_paper.mnist.learner import Learner
from ewc_paper.options import MANY, option
from ewc_paper.runs.engine import Part


@dataclass(frozen=True, kw_only=True)
class FisherOverlap(PermutedMnist):
    """Fisher overlap of two tasks by depth, for small and large permuted squares (figure 3C)."""

    name = "fisher-overlap"
    presets: ClassVar[Presets] = {
        "quick": {"epochs": 3, "fisher_samples": 2000},
        "laptop": {"epochs": 20, "seeds": 3},
        "paper": {**PAPER, "lr": 1e-3, "epochs": 100, "fisher_samples": 60_000},
    }

    tasks: int = option(2, "number of tasks, learned one after another", low=2, high=1000)
    strength: float = option(
        100.0, "λ of EWC: how much old tasks count against the new one", low=0, high=1e12
    )
    layers: int = option(6, "hidden layers", low=1, high=100)
    width: int = option(100, "units a hidden layer", low=1, high=100_000)
    lr: float = option(0.03, "learning rate at the start of each task", low=1e-12, high=1e3)
    squares: tuple[int, ...] = option((8, 26), "sides of the permuted squares", low=1, high=SIDE)
    seeds: int = option(
        1, "number of seeds, counted from --seed; several give bands", low=1, high=MANY
    )

    def _parts(self) -> Iterator[Part]:
        for square in self.squares:
            for seed in range(self.seed, self.seed + self.seeds):
                config = self.part_config(square=square, seed=seed)
                yield Part(f"square{square}-seed{seed}", config, make_overlap_learner)


class OverlapLearner(Learner):
    """Learns its tasks, then compares their Fishers at the weights that solve them all, if any."""

    def run(self) -> Iterator[dict[str, Any] | None]:
        yield from super().run()
        if self.diverged:
            return
        fishers = [
            fisher_diagonal(self.model, self.fisher_batches(task), kind="exact")
            for task in range(self.recipe.tasks)
        ]
        overlaps = [
            list(fisher_overlap_by_layer(first, second).values())
            for index, first in enumerate(fishers)
            for second in fishers[index + 1 :]
        ]
        pairs = len(overlaps)
        yield {"overlap": [sum(layer) / pairs for layer in zip(*overlaps, strict=True)]}


def make_overlap_learner(config: dict[str, Any]) -> OverlapLearner:
    return OverlapLearner(make_tasks(config), Recipe(**config["recipe"]))
