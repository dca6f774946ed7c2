"""The paper's figure 1 from a real problem of two parameters.

Both tasks are regressions y = θ·x + noise. Task A pins θ₁ and hardly θ₂, because its inputs hardly
vary along the second axis; task B's good region is a tilted valley that crosses A's far from where
SGD alone would end.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ewc.memory import EWC
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Experiment, Presets
from ewc_paper.options import option
from ewc_paper.runs.engine import Part
from ewc_paper.seeding import generator

METHODS = ("sgd", "l2", "ewc")
BATCH_SIZE = 50
FAR = 1e3  # the landscape reaches from -3.4 to 3.6
MAX_NUMBERS = 250_000_000  # of the landscape at once: 1 GB


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

    def _parts(self) -> Iterator[Part]:
        yield Part("schematic", self.to_dict(), make_schematic)


def make_schematic(config: dict[str, Any]) -> "TwoParameters":
    return TwoParameters(Schematic(**{k: v for k, v in config.items() if k != "experiment"}))


class TwoParameters:
    """Yields the landscape, the way to task A's solution, and the three ways on from there."""

    def __init__(self, config: Schematic) -> None:
        self.config = config
        self.done = 0
        identity = torch.eye(2)
        tilted = (
            torch.tensor([[1.0, 1.0], [-1.0, 1.0]]) / 2**0.5
        )  # rows: across and along B's valley
        self.a = self._task("A", torch.tensor([-1.0, 0.0]), identity, spread=(1.5, 0.25))
        self.b = self._task("B", torch.tensor([0.7, 0.7]), tilted, spread=(1.5, 0.25))

    def _task(
        self, name: str, solution: Tensor, axes: Tensor, spread: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        random = generator(self.config.seed, name)
        inputs = torch.randn(self.config.samples, 2, generator=random) * torch.tensor(spread) @ axes
        noise = 0.1 * torch.randn(self.config.samples, generator=random)
        return inputs, inputs @ solution + noise

    @property
    def _tasks(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {"loss_a": self.a, "loss_b": self.b}

    @property
    def progress(self) -> float:
        return self.done / (2 + len(METHODS))

    def run(self) -> Iterator[dict[str, Any]]:
        for row in islice(self._rows(), self.done, None):
            self.done += 1
            yield row

    def _rows(self) -> Iterator[dict[str, Any]]:
        yield self._landscape()
        solved_a, points = self._train_a()
        row = self._row("A", points)
        yield row
        if "diverged" in row:
            return  # there is no solution to go on from
        for method in METHODS:
            yield self._row(method, self._train_b(solved_a, method))

    def _train_a(self) -> tuple[nn.Linear, list[list[float]]]:
        model = nn.Linear(2, 1, bias=False)
        nn.init.constant_(model.weight, -2.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.config.lr)
        return model, self._train(model, optimizer, self.a, "A")

    def _train_b(self, solved_a: nn.Linear, method: str) -> list[list[float]]:
        """The way from task A's solution when B is trained with a method."""
        model = nn.Linear(2, 1, bias=False)
        model.load_state_dict(solved_a.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=self.config.lr)
        memory = EWC(
            model, strength=self.config.l2_strength if method == "l2" else self.config.strength
        )
        if method == "l2":
            memory.anchor(1.0)
        elif method == "ewc":
            memory.consolidate([self.a[0]], likelihood="gaussian")
        memory.attach(optimizer)
        return self._train(model, optimizer, self.b, "B")

    def _train(
        self,
        model: nn.Linear,
        optimizer: torch.optim.Optimizer,
        task: tuple[Tensor, Tensor],
        name: str,
    ) -> list[list[float]]:
        random = generator(self.config.seed, "batches", name)
        points = [model.weight[0].tolist()]
        for _ in range(self.config.gradient_steps):
            rows = torch.randint(self.config.samples, (BATCH_SIZE,), generator=random)
            optimizer.zero_grad()
            # ½ of the squared error is the negative log-likelihood that the Fisher belongs to.
            (mse_loss(model(task[0][rows]).squeeze(1), task[1][rows]) / 2).backward()
            optimizer.step()
            points.append(model.weight[0].tolist())
        return points

    def _loss(self, task: tuple[Tensor, Tensor], points: Tensor) -> Tensor:
        """The loss of each point `(n, 2)` on a task."""
        return (points @ task[0].T - task[1]).square().mean(1) / 2

    def _row(self, way: str, points: list[list[float]]) -> dict[str, Any]:
        """A way with the losses at its end; of one that diverged, the part that is in sight."""
        losses = self._losses(points[-1:])
        if all(map(math.isfinite, losses.values())):
            return {"way": way, "points": points, **losses}
        seen = _within(points)
        return {"way": way, "points": seen, **self._losses(seen[-1:]), "diverged": True}

    def _losses(self, point: list[list[float]]) -> dict[str, float]:
        """The loss of a point `(1, 2)` on each task."""
        place = torch.tensor(point)
        return {name: float(self._loss(task, place)) for name, task in self._tasks.items()}

    def _landscape(self) -> dict[str, Any]:
        across = torch.linspace(-3.0, 3.5, self.config.grid)
        up = torch.linspace(-3.4, 3.6, self.config.grid)
        points = torch.cartesian_prod(up, across).flip(1)
        shape = (self.config.grid, self.config.grid)
        losses = {
            name: self._loss(task, points).view(shape).tolist()
            for name, task in self._tasks.items()
        }
        return {"across": across.tolist(), "up": up.tolist(), **losses}

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def _within(points: list[list[float]]) -> list[list[float]]:
    """The points before the first that lies far outside of any figure, or is not a number."""
    return list(takewhile(lambda point: all(abs(x) < FAR for x in point), points))
