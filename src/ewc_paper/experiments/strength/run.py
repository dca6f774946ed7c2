"""How much the strength matters, for the proximal pull and for the explicit gradient."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

from ewc.step_size import How
from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.permuted_mnist import PAPER, PermutedMnist, make_learner
from ewc_paper.mnist.config import PermutationConfig
from ewc_paper.options import option, plain
from ewc_paper.runs.engine import Part


@dataclass(frozen=True, kw_only=True)
class Strength(RepeatedExperiment, PermutedMnist, PermutationConfig):
    """Average accuracy after the last task over the strength, for each way to take the pull."""

    name = "strength"
    presets: ClassVar[Presets] = {
        "quick": {"tasks": 3, "epochs": 1, "fisher_samples": 2000, "strengths": (1.0, 1e2, 1e4)},
        "laptop": {"tasks": 10, "epochs": 1, "floor": 0.02, "fisher_samples": 5000},
        "paper": {**PAPER, "tasks": 10, "lr": 1e-3, "epochs": 20, "fisher_samples": 60_000},
    }

    strengths: tuple[float, ...] = option(
        tuple(10.0 ** (half / 2) for half in range(11)), "strengths to try", low=0, common=True
    )
    ways: tuple[str, ...] = option(
        get_args(How), "how the pull is computed", choices=get_args(How), common=True
    )

    def _parts(self) -> Iterator[Part]:
        for how in self.ways:
            for strength in self.strengths:
                for seed in self.all_seeds:
                    config = self.part_config(how=how, strength=strength, seed=seed)
                    yield Part(f"{how}-{plain(strength)}-seed{seed}", config, make_learner)
