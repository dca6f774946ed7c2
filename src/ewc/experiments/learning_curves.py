"""Training curves for three tasks (the paper's figure 3A): EWC remembers, SGD forgets."""

from dataclasses import dataclass
from typing import ClassVar

from ewc.runs.engine import Part
from ewc.supervised.recipe import METHODS

from .config import Presets, option
from .permuted_mnist import PermutedMnist, make_learner


@dataclass(frozen=True, kw_only=True)
class LearningCurves(PermutedMnist):
    """Accuracy of every task so far during training, for EWC, L2 and plain SGD (figure 3A)."""

    name = "learning-curves"
    presets: ClassVar[Presets] = {
        "quick": {"epochs": 3, "fisher_samples": 5000, "segments": 2},
        "laptop": {"epochs": 10},
        # The paper's table; it does not tell the batch size, λ and the coefficient of L2.
        "paper": {
            "epochs": 20,
            "batch_size": 10,
            "lr": 1e-3,
            "momentum": 0.0,
            "schedule": "constant",
            "fisher_samples": 60_000,
        },
    }

    methods: tuple[str, ...] = option(
        ("ewc", "l2", "sgd"), "methods to compare", choices=tuple(METHODS)
    )
    l2_strength: float = option(0.05, "coefficient of the L2 baseline's uniform pull", low=0)

    def parts(self) -> list[Part]:
        return [
            Part(
                method,
                self.part_config(
                    method=method,
                    curves=True,
                    strength=self.l2_strength if method == "l2" else self.strength,
                ),
                make_learner,
            )
            for method in self.methods
        ]
