"""Average accuracy as tasks are added (the paper's figure 3B).

The paper shows the best of 50 random combinations for each method and number of tasks: that is a
sweep, which chooses a trial for each of them by validation accuracy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ewc_paper.experiments.accuracy_rows import choosing_accuracy, task_ends
from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.permuted_mnist import PAPER, MethodComparison, make_learner
from ewc_paper.mnist.config import METHODS
from ewc_paper.options import option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part

SINGLE = "single"  # the dashed line: plain training on one task alone
VALIDATED = {"validation_samples": 5000}  # dropout stops early


@dataclass(frozen=True, kw_only=True)
class ManyTasks(RepeatedExperiment, MethodComparison):
    """Average accuracy after 1, 2, 3, ... tasks, for EWC, dropout and others (figure 3B)."""

    name = "many-tasks"
    presets: ClassVar[Presets] = {
        "quick": {
            **VALIDATED,
            "tasks": 5,
            "epochs": 1,
            "dropout_epochs": 1,
            "fisher_samples": 5000,
        },
        "laptop": {
            **VALIDATED,
            "tasks": 10,
            "width": 1000,
            "epochs": 2,
            "strength": 50.0,
            "floor": 0.02,
            "seeds": 3,
        },
        "paper": {
            **VALIDATED,
            **PAPER,
            "methods": ("ewc", "dropout", SINGLE),
            "tasks": 10,
            "epochs": 100,
            "dropout_epochs": 100,
            "fisher_samples": 55_000,
            "lr": 1e-3,
            "dropout_lr": 1e-3,
            "width": 2000,
            "strength": 100.0,
        },
    }

    methods: tuple[str, ...] = option(
        ("ewc", "dropout", "sgd", SINGLE),
        "methods to compare",
        choices=(*METHODS, SINGLE),
        common=True,
    )
    dropout_epochs: int = option(
        5, "epochs per task for dropout, cut short by early stopping", low=1
    )
    dropout_lr: float = option(0.01, "learning rate for dropout", low=1e-12, high=1e3)

    def check(self) -> None:
        super().check()
        if "dropout" in self.methods:
            self.check_validation()

    def _parts(self) -> Iterator[Part]:
        for method in self.methods:
            for seed in self.all_seeds:
                changes: dict[str, Any] = {"method": method, "seed": seed}
                changes["strength"] = self.strength_of(method)
                if method == "dropout":
                    changes |= {"epochs": self.dropout_epochs, "lr": self.dropout_lr}
                if method == SINGLE:
                    changes |= {"method": "sgd", "tasks": 1}
                config = {"label": method, **self.part_config(**changes)}
                # 0 was the number of a combination, when a run could try several.
                yield Part(f"{method}-0-seed{seed}", config, make_learner)

    def points(self, run: RunDirectory) -> dict[str, float]:
        """The accuracy by which a trial is chosen for each method and number of tasks."""
        found = {
            (self.methods.index(part.config()["label"]), row["task"] + 1): choosing_accuracy(row)
            for part in run.parts()
            for row in task_ends(part.rows())
        }
        return {
            f"{self.methods[method]}-{count}": found[method, count]
            for method, count in sorted(found)
        }

    def alone(self, point: str) -> tuple[str, dict[str, Any]]:
        method = point.rpartition("-")[0]
        return method, {"methods": (method,)}
