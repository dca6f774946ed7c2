"""Average accuracy as tasks are added (the paper's figure 3B), with random search if wished."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.permuted_mnist import PAPER, MethodComparison, make_learner
from ewc_paper.mnist.config import METHODS
from ewc_paper.options import option
from ewc_paper.runs.engine import Part
from ewc_paper.seeding import derive_seed

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
            "search": 50,
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
    dropout_lr: float = option(
        0.01, "learning rate for dropout, where none is searched", low=1e-12, high=1e3
    )
    search: int = option(
        0,
        "combinations tried by random search; 0 takes lr, width and strength as given",
        low=0,
        common=True,
    )
    lr_range: tuple[float, ...] = option(
        (1e-5, 1e-3), "learning rates searched, from and to", low=1e-12, high=1e3, rising=True
    )
    width_range: tuple[int, ...] = option(
        (400, 2000), "widths searched, from and to", low=1, high=100_000, rising=True
    )
    strength_range: tuple[float, ...] = option(
        (10.0, 1e4), "strengths of EWC searched, from and to", low=1e-12, high=1e12, rising=True
    )

    def check(self) -> None:
        super().check()
        if "dropout" in self.methods or self.search:
            self.check_validation()

    @property
    def widest(self) -> int:
        return self.width_range[1] if self.search else self.width

    def _parts(self) -> Iterator[Part]:
        for method in self.methods:
            for number, combination in enumerate(self._combinations(method)):
                for seed in self.all_seeds:
                    changes: dict[str, Any] = {"method": method, "seed": seed}
                    if method == "dropout":
                        changes |= {"epochs": self.dropout_epochs, "lr": self.dropout_lr}
                    changes |= combination
                    if method == SINGLE:
                        changes |= {"method": "sgd", "tasks": 1}
                    config = {"label": method, "combination": number, **self.part_config(**changes)}
                    yield Part(f"{method}-{number}-seed{seed}", config, make_learner)

    def _combinations(self, method: str) -> list[dict[str, Any]]:
        """The options to try: as given, or drawn evenly on a log scale (widths: a plain one)."""
        strength = self.strength_of(method)
        if not self.search:
            return [{"strength": strength}]
        random = np.random.default_rng(derive_seed(self.seed, "search"))
        drawn = [
            {
                "lr": float(np.exp(random.uniform(*np.log(self.lr_range)))),
                "width": int(random.integers(self.width_range[0], self.width_range[1] + 1)),
                "strength": float(np.exp(random.uniform(*np.log(self.strength_range)))),
            }
            for _ in range(self.search)
        ]
        return drawn if method == "ewc" else [{**one, "strength": strength} for one in drawn]
