"""Figure 1, measured: two regressions with two parameters θ, learned one after the other.

Both tasks are y = θ·x + noise, with the loss L(θ) = ½ mean (θ·x − y)², the negative log-likelihood
of a Gaussian with unit variance. Task A determines θ₁ well and θ₂ hardly, because its inputs hardly
vary along the second axis. Task B's region of low loss is a tilted valley, which crosses task A's
region far from where SGD alone ends.

After task A, task B is learned by gradient steps on

    sgd   L_B(θ)
    l2    L_B(θ) + (λ/2) Σ_i (θ_i − θ*_A,i)²
    ewc   L_B(θ) + (λ/2) Σ_i F_A,i (θ_i − θ*_A,i)²

The figure shows the trajectories from task A's solution, over the regions of low loss of both
tasks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from contourpy import FillType, contour_generator
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ewc.memory import EWC
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Experiment, Presets
from ewc_paper.experiments.view import Layout, Paper, StoredConfig
from ewc_paper.figures.names import METHOD_LABELS
from ewc_paper.figures.panel import (
    LOOKS,
    SOLID,
    Arrangement,
    Figure,
    Look,
    Note,
    Panel,
    Region,
    Series,
)
from ewc_paper.options import option
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.runs.schema import Check, list_of, number, one_of, record
from ewc_paper.seeding import generator

MAX_ELEMENTS = 250_000_000  # in memory at once for the landscape: 1 GB


@dataclass(frozen=True, kw_only=True)
class Schematic(Experiment):
    """The options, the networks to train and the score."""

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
        elements = self.grid**2 * self.samples
        if elements > MAX_ELEMENTS:
            raise RunError(
                f"{self.grid} x {self.grid} points times {self.samples} samples take "
                f"{4 * elements / 1e9:.1f} GB: choose a smaller --grid or --samples"
            )

    score_means = "minus the mean of EWC's losses on both tasks"

    def score(self, run: RunDirectory) -> float | None:
        rows = run.part("schematic").rows()
        ends = [row for row in rows if row.get("way") == "ewc" and not row.get("diverged")]
        return -(ends[-1]["loss_a"] + ends[-1]["loss_b"]) / 2 if ends else None

    def _parts(self) -> Iterator[Part]:
        yield Part("schematic", self.to_dict(), make_schematic)


def make_schematic(config: dict[str, Any]) -> "TwoParameters":
    """Create what the options in a run directory describe."""
    return TwoParameters(Schematic(**{k: v for k, v in config.items() if k != "experiment"}))


METHODS = ("sgd", "l2", "ewc")
BATCH_SIZE = 50
FAR = 1e3  # the landscape spans -3.4 to 3.6

Trajectory = list[list[float]]  # θ before training and after each gradient step


class Regression(NamedTuple):
    """The data of one task."""

    inputs: Tensor  # x, (samples, 2)
    targets: Tensor  # y, (samples,)

    def loss(self, thetas: Tensor) -> Tensor:
        """Return L(θ) of each row θ of `thetas`, a tensor (n, 2)."""
        return (thetas @ self.inputs.T - self.targets).square().mean(1) / 2


class TwoParameters:
    """Learns task A, then task B with each method; yields the landscape and the trajectories."""

    def __init__(self, config: "Schematic") -> None:
        self.config = config
        self.rows_done = 0
        along_axes = torch.eye(2)
        tilted = torch.tensor([[1.0, 1.0], [-1.0, 1.0]]) / 2**0.5  # across and along B's valley
        self.task_a = self._make_task("A", theta=torch.tensor([-1.0, 0.0]), directions=along_axes)
        self.task_b = self._make_task("B", theta=torch.tensor([0.7, 0.7]), directions=tilted)

    def _make_task(self, name: str, *, theta: Tensor, directions: Tensor) -> Regression:
        """Draw inputs that vary much along the first direction and hardly along the second."""
        random, samples = generator(self.config.seed, name), self.config.samples
        spread = torch.tensor((1.5, 0.25))
        inputs = torch.randn(samples, 2, generator=random) * spread @ directions
        noise = 0.1 * torch.randn(samples, generator=random)
        return Regression(inputs, inputs @ theta + noise)

    @property
    def progress(self) -> float:
        """Fraction of the rows that are done."""
        return self.rows_done / (2 + len(METHODS))

    def run(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that are still to be computed."""
        for row in islice(self._rows(), self.rows_done, None):
            self.rows_done += 1
            yield row

    def _rows(self) -> Iterator[dict[str, Any]]:
        yield self._landscape()
        model, trajectory = self._learn_a()
        row = self._trajectory_row("A", trajectory)
        yield row
        if "diverged" in row:
            return  # there is nothing to protect
        for method in METHODS:
            yield self._trajectory_row(method, self._learn_b(model, method))

    def _learn_a(self) -> tuple[nn.Linear, Trajectory]:
        model = nn.Linear(2, 1, bias=False)
        nn.init.constant_(model.weight, -2.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.config.lr)
        return model, self._train(model, optimizer, self.task_a, "A")

    def _learn_b(self, model_a: nn.Linear, method: str) -> Trajectory:
        """Learn task B from the parameters that were learned on task A."""
        model = nn.Linear(2, 1, bias=False)
        model.load_state_dict(model_a.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=self.config.lr)
        strength = self.config.l2_strength if method == "l2" else self.config.strength
        memory = EWC(model, strength=strength)
        if method == "l2":
            memory.anchor(1.0)
        elif method == "ewc":
            memory.consolidate([self.task_a.inputs], likelihood="gaussian")
        memory.attach(optimizer)
        return self._train(model, optimizer, self.task_b, "B")

    def _train(
        self, model: nn.Linear, optimizer: torch.optim.Optimizer, task: Regression, name: str
    ) -> Trajectory:
        random = generator(self.config.seed, "batches", name)
        trajectory = [model.weight[0].tolist()]
        for _ in range(self.config.gradient_steps):
            batch = torch.randint(self.config.samples, (BATCH_SIZE,), generator=random)
            optimizer.zero_grad()
            predictions = model(task.inputs[batch]).squeeze(1)
            (mse_loss(predictions, task.targets[batch]) / 2).backward()
            optimizer.step()
            trajectory.append(model.weight[0].tolist())
        return trajectory

    def _trajectory_row(self, name: str, trajectory: Trajectory) -> dict[str, Any]:
        """Return a trajectory with the losses at its end; if it diverged, the part that is near."""
        losses = self._losses(trajectory[-1:])
        if all(map(math.isfinite, losses.values())):
            return {"way": name, "points": trajectory, **losses}
        near = _before_far(trajectory)
        return {"way": name, "points": near, **self._losses(near[-1:]), "diverged": True}

    def _losses(self, theta: Trajectory) -> dict[str, float]:
        """Return the loss of each task at one θ, given as a trajectory of one point."""
        point = torch.tensor(theta)
        return {
            "loss_a": float(self.task_a.loss(point)),
            "loss_b": float(self.task_b.loss(point)),
        }

    def _landscape(self) -> dict[str, Any]:
        """Return the loss of each task on a grid of parameters: `across` is θ₁, `up` is θ₂."""
        side = self.config.grid
        across, up = torch.linspace(-3.0, 3.5, side), torch.linspace(-3.4, 3.6, side)
        thetas = torch.cartesian_prod(up, across).flip(1)
        return {
            "across": across.tolist(),
            "up": up.tolist(),
            "loss_a": self.task_a.loss(thetas).view(side, side).tolist(),
            "loss_b": self.task_b.loss(thetas).view(side, side).tolist(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rows that are done; the rest is computed again from the seed."""
        return {"done": self.rows_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the rows that were done."""
        self.rows_done = state["done"]


def _before_far(trajectory: Trajectory) -> Trajectory:
    """Return the points before the first that is far outside of the landscape, or not a number."""
    return list(takewhile(lambda theta: all(abs(x) < FAR for x in theta), trajectory))


GRAY, CREAM = "#b9b9b9", "#f5e3b5"
MOVE_TO = 1  # contourpy's code of a point at which a ring begins
LOW_LOSS = 0.25  # inside a region the loss is below this
TASK_A_LOOK = Look("#4d4d4d", SOLID, "*", 1.0)
TASK_A = "A"  # the trajectory of task A; all others have the names of methods


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    line = list_of(number(), 2)
    landscape = record(across=line, up=line, loss_a=list_of(line, 2), loss_b=list_of(line, 2))
    trajectory = record(
        way=one_of((TASK_A, "sgd", "l2", "ewc")),
        points=list_of(list_of(number(), 2, 2), 1),
        loss_a=number(),
        loss_b=number(),
    )
    return lambda row: landscape(row) if "across" in row else trajectory(row)


LAYOUT = Layout(_row)

PAPER = Paper(
    "figure 1",
    "After task A, plain gradient steps on B leave A's region of low error. An equal pull on every "
    "weight (L2) learns too little of B. EWC finds a solution of B inside A's region.",
    "A drawing, not a measurement: two overlapping regions, gray for A and cream for B, and three "
    "arrows from A's solution. That of SGD ends in B's region alone, that of L2 between the "
    "regions, and that of EWC where they overlap.",
)


def _rows(run: RunDirectory) -> tuple[MetricsRow | None, dict[str, MetricsRow]]:
    """Return the landscape, if it is there yet, and the trajectories so far."""
    rows = run.part("schematic").rows()
    landscape = next((row for row in rows if "across" in row), None)
    return landscape, {row["way"]: row for row in rows if "way" in row}


def _label(name: str) -> str:
    return METHOD_LABELS.get(name, "task A first")


def panel(landscape: MetricsRow, trajectories: dict[str, MetricsRow]) -> Panel:
    """Return regions of low loss and trajectories.

    Args:
        landscape: the row with the losses on a grid.
        trajectories: the other rows, by method or `A`.
    """
    labels = (
        *_region_label(landscape, "loss_a", "low loss for A", "#404040"),
        *_region_label(landscape, "loss_b", "low loss for B", "#7a5c00"),
    )
    return Panel(
        "θ₁",
        "θ₂",
        series=[_trajectory(name, row) for name, row in trajectories.items()],
        regions=[
            Region("low loss for B", CREAM, _rings(landscape, "loss_b")),
            Region("low loss for A", GRAY, _rings(landscape, "loss_a")),
        ],
        notes=[*labels, *_start(trajectories)],
        x_limits=(landscape["across"][0], landscape["across"][-1]),
        y_limits=(landscape["up"][0], landscape["up"][-1]),
    )


def _rings(landscape: MetricsRow, name: str) -> list[list[tuple[float, float]]]:
    """Return the borders of the regions in which a loss is low."""
    across, up, loss = landscape["across"], landscape["up"], np.asarray(landscape[name])
    grid = contour_generator(across, up, loss, fill_type=FillType.OuterCode)
    areas, codes = cast(tuple[list[Any], list[Any]], grid.filled(0, LOW_LOSS))
    starts = [np.flatnonzero(code == MOVE_TO) for code in codes]
    return [
        ring.tolist()
        for area, at in zip(areas, starts, strict=True)
        for ring in np.split(area, at[1:])
    ]


def _trajectory(name: str, row: MetricsRow) -> Series:
    """Return a trajectory with, if it did not diverge, a marker at its end."""
    x, y = np.asarray(row["points"], dtype=float).T.tolist()
    diverged = row.get("diverged", False)
    look = LOOKS[name]._replace(width=1.8) if name in LOOKS else TASK_A_LOOK
    label = _label(name) + (" (diverged)" if diverged else "")
    return Series(label, look, x, {"": y}, "none" if diverged else "end")


def _start(trajectories: dict[str, MetricsRow]) -> Iterator[Note]:
    """Yield the name of task A's solution, where the other trajectories begin."""
    if TASK_A in trajectories and not trajectories[TASK_A].get("diverged"):
        x, y = trajectories[TASK_A]["points"][-1]
        yield Note("θ*A", x + 0.25, y - 0.1, "#222222")


def _region_label(landscape: MetricsRow, name: str, text: str, color: str) -> Iterator[Note]:
    """Yield a text below the lowest point of a region, if the grid is fine enough to have one."""
    inside = np.argwhere(np.asarray(landscape[name]) < LOW_LOSS)
    if len(inside):
        row, column = inside[0]
        yield Note(text, landscape["across"][column], landscape["up"][row] - 0.1, color)


def result(run: RunDirectory) -> str:
    """Return the losses on both tasks at the end of each method."""
    ways = [row for name, row in _rows(run)[1].items() if name != TASK_A]
    phrases = [
        f"{_label(row['way'])} diverged"
        if row.get("diverged")
        else f"{_label(row['way'])} {row['loss_a']:.2f} on A and {row['loss_b']:.2f} on B"
        for row in ways
    ]
    return f"Loss after task B: {'; '.join(phrases)}." if phrases else ""


def figures(run: RunDirectory) -> list[Figure]:
    """Return the trajectories over the losses; nothing if there are none yet."""
    landscape, trajectories = _rows(run)
    return [] if landscape is None else [figure(landscape, trajectories)]


def figure(landscape: MetricsRow, trajectories: dict[str, MetricsRow]) -> Figure:
    """Return the figure of a landscape and its trajectories."""
    title = "From the solution of task A to a solution of task B"
    caption = "Each line is the way of the two parameters while B is trained; a marker is its end."
    arrangement = Arrangement(size=(5.0, 4.4), legend={"loc": "upper right"})
    panels = [panel(landscape, trajectories)]
    return Figure("schematic", title, caption, panels, arrangement)


def table(run: RunDirectory) -> Table:
    """The loss of both tasks at the end of each trajectory."""
    table = Table("method", title="loss at the end of training")
    table.add_column("task A", justify="right")
    table.add_column("task B", justify="right")
    for name, row in _rows(run)[1].items():
        diverged = row.get("diverged", False)
        losses = ["diverged" if diverged else f"{row[loss]:.3f}" for loss in ("loss_a", "loss_b")]
        table.add_row(_label(name), *losses)
    return table
