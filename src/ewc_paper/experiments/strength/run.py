"""How much the strength matters, for the proximal pull and for the explicit gradient."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

from ewc.step_size import How
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.permuted_mnist import PAPER, PermutedMnist, make_learner
from ewc_paper.options import MANY, option, plain
from ewc_paper.runs.engine import Part


@dataclass(frozen=True, kw_only=True)
class Strength(PermutedMnist):
    """Average accuracy after the last task over the strength, for each way to take the pull."""

    name = "strength"
    presets: ClassVar[Presets] = {
        "quick": {"tasks": 3, "epochs": 1, "fisher_samples": 2000, "strengths": (1.0, 1e2, 1e4)},
        "laptop": {"epochs": 1, "floor": 0.02, "fisher_samples": 5000},
        "paper": {**PAPER, "lr": 1e-3, "epochs": 20, "fisher_samples": 60_000},
    }

    tasks: int = option(10, "number of tasks, learned one after another", low=1, high=1000)
    strengths: tuple[float, ...] = option(
        tuple(10.0 ** (half / 2) for half in range(11)), "strengths to try", low=0, high=1e12
    )
    ways: tuple[str, ...] = option(get_args(How), "ways to take the pull", choices=get_args(How))
    seeds: int = option(
        1, "number of seeds, counted from --seed; several give bands", low=1, high=MANY
    )

    def _parts(self) -> Iterator[Part]:
        for how in self.ways:
            for strength in self.strengths:
                for seed in range(self.seed, self.seed + self.seeds):
                    config = self.part_config(how=how, strength=strength, seed=seed)
                    yield Part(f"{how}-{plain(strength)}-seed{seed}", config, make_learner)
