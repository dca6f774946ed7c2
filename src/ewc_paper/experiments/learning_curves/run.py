"""Training curves for three tasks (the paper's figure 3A): EWC remembers, SGD forgets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.permuted_mnist import PAPER, MethodComparison, make_learner
from ewc_paper.mnist.config import METHODS
from ewc_paper.options import option
from ewc_paper.runs.engine import Part

MAX_TASKS = 100  # each has a panel in the figure

# A rate that falls to zero settles each curve before its task ends.
SMOOTH = {"schedule": "cosine", "average": 0.0, "strength": 100.0}


@dataclass(frozen=True, kw_only=True)
class LearningCurves(MethodComparison):
    """Accuracy of every task so far during training, for EWC, L2 and plain SGD (figure 3A)."""

    name = "learning-curves"
    presets: ClassVar[Presets] = {
        "quick": {**SMOOTH, "epochs": 3, "fisher_samples": 5000, "segments": 2},
        "laptop": {**SMOOTH, "epochs": 10},
        "paper": {**PAPER, "lr": 1e-3, "epochs": 20, "strength": 100.0, "fisher_samples": 60_000},
    }

    methods: tuple[str, ...] = option(
        ("ewc", "l2", "sgd"), "methods to compare", choices=tuple(METHODS), common=True
    )

    def check(self) -> None:
        super().check()
        if self.tasks > MAX_TASKS:
            raise RunError(f"--tasks must be at most {MAX_TASKS}, got {self.tasks}")
        if "dropout" in self.methods:
            self.check_validation()

    def _parts(self) -> Iterator[Part]:
        for method in self.methods:
            config = self.part_config(method=method, curves=True, strength=self.strength_of(method))
            yield Part(method, config, make_learner)
