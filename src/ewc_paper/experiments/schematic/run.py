"""The paper's figure 1, measured on two tasks with two parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Experiment, Presets
from ewc_paper.experiments.schematic.learner import TwoParameters
from ewc_paper.options import option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part

MAX_NUMBERS = 250_000_000  # in memory at once for the landscape: 1 GB


@dataclass(frozen=True, kw_only=True)
class Schematic(Experiment):
    """The ways of SGD, L2 and EWC over the losses of two tasks, in two parameters (figure 1)."""

    name = "schematic"
    presets: ClassVar[Presets] = {"quick": {}, "laptop": {}, "paper": {}}

    samples: int = option(2000, "samples per task", low=1, high=1_000_000, common=True)
    gradient_steps: int = option(1000, "gradient steps per task", low=1, high=100_000, common=True)
    lr: float = option(0.1, "learning rate of SGD", low=1e-12, high=1e3, common=True)
    strength: float = option(3.0, "λ of EWC", low=0, common=True)
    l2_strength: float = option(
        3.0, "coefficient of the L2 baseline's uniform pull", low=0, common=True
    )
    grid: int = option(81, "points per side of the loss landscape", low=2, high=1000, common=True)

    def check(self) -> None:
        super().check()
        numbers = self.grid**2 * self.samples
        if numbers > MAX_NUMBERS:
            raise RunError(
                f"{self.grid} x {self.grid} points times {self.samples} samples take "
                f"{4 * numbers / 1e9:.1f} GB: choose a smaller --grid or --samples"
            )

    score_means = "minus the mean of EWC's losses on both tasks"

    def score(self, run: RunDirectory) -> float | None:
        rows = run.part("schematic").rows()
        ends = [row for row in rows if row.get("way") == "ewc" and not row.get("diverged")]
        return -(ends[-1]["loss_a"] + ends[-1]["loss_b"]) / 2 if ends else None

    def _parts(self) -> Iterator[Part]:
        yield Part("schematic", self.to_dict(), make_schematic)


def make_schematic(config: dict[str, Any]) -> TwoParameters:
    """Create what the options in a run directory describe."""
    return TwoParameters(Schematic(**{k: v for k, v in config.items() if k != "experiment"}))
