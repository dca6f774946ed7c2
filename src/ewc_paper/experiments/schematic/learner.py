"""Two regressions with the same two parameters θ, learned one after the other.

Both tasks are y = θ·x + noise, with the loss L(θ) = ½ mean (θ·x − y)², the negative log-likelihood
of a Gaussian with unit variance. Task A determines θ₁ well and θ₂ hardly, because its inputs hardly
vary along the second axis. Task B's region of low loss is a tilted valley, which crosses task A's
region far from where SGD alone ends.

After task A, task B is learned by gradient steps on

    sgd   L_B(θ)
    l2    L_B(θ) + (λ/2) Σ_i (θ_i − θ*_A,i)²
    ewc   L_B(θ) + (λ/2) Σ_i F_A,i (θ_i − θ*_A,i)²
"""

import math
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ewc.memory import EWC
from ewc_paper.seeding import generator

if TYPE_CHECKING:
    from ewc_paper.experiments.schematic.run import Schematic

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
