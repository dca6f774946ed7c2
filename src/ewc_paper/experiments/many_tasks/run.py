"""Average accuracy as tasks are added (the paper's figure 3B), with random search if wished."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.permuted_mnist import PAPER, PermutedMnist, make_learner
from ewc_paper.mnist.config import METHODS
from ewc_paper.options import MANY, option
from ewc_paper.runs.engine import Part
from ewc_paper.seeding import derive_seed

SINGLE = "single"  # the dashed line: plain training on one task alone


@dataclass(frozen=True, kw_only=True)
class ManyTasks(PermutedMnist):
    """Average accuracy after 1, 2, 3, ... tasks, for EWC, dropout and others (figure 3B)."""

    name = "many-tasks"
    presets: ClassVar[Presets] = {
        "quick": {"tasks": 5, "epochs": 1, "dropout_epochs": 1, "fisher_samples": 5000},
        "laptop": {"width": 1000, "epochs": 2, "strength": 50.0, "floor": 0.02, "seeds": 3},
        "paper": {
            **PAPER,
            "methods": ("ewc", "dropout", SINGLE),
            "epochs": 100,
            "dropout_epochs": 100,
            "fisher_samples": 55_000,
            "search": 50,
        },
    }

    tasks: int = option(10, "number of tasks, learned one after another", low=1, high=1000)
    validation_samples: int = option(
        5000, "training images held out for early stopping and search", low=0, high=MANY
    )
    methods: tuple[str, ...] = option(
        ("ewc", "dropout", "sgd", SINGLE), "methods to compare", choices=(*METHODS, SINGLE)
    )
    l2_strength: float = option(
        0.05, "coefficient of the L2 baseline's uniform pull", low=0, high=1e12
    )
    dropout_epochs: int = option(
        5, "epochs a task for dropout, cut short by early stopping", low=1, high=MANY
    )
    dropout_lr: float = option(
        0.01, "learning rate for dropout, where none is searched", low=1e-12, high=1e3
    )
    seeds: int = option(
        1, "number of seeds, counted from --seed; several give bands", low=1, high=MANY
    )
    search: int = option(
        0,
        "combinations tried by random search; 0 takes lr, width and strength as given",
        low=0,
        high=MANY,
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
                for seed in range(self.seed, self.seed + self.seeds):
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
        strength = self.l2_strength if method == "l2" else self.strength
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
