"""A small regression held by two wells, for the tests of the pull."""

import copy

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ewc.memory import EWC

STRENGTH = 0.7


class Problem:
    """Linear regression on 5 weights, held by two wells that leave one of the weights free."""

    def __init__(self, strength: float = STRENGTH, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(3)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.x, self.y = draw(40, 4), draw(40, 1)
        self.model = nn.Linear(4, 1, dtype=dtype)
        self.memory = EWC(self.model, strength=strength)
        self.wells: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
        for _ in range(2):
            self.set_weights(draw(1, 4), draw(1))
            precision = {"weight": draw(1, 4).square(), "bias": draw(1).square()}
            precision["weight"][0, 1] = 0.0
            self.memory.anchor(precision)
            weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
            self.wells.append((precision, weights))
        self.set_weights(draw(1, 4), draw(1))

    def set_weights(self, weight: Tensor, bias: Tensor) -> None:
        with torch.no_grad():
            self.model.weight.copy_(weight)
            self.model.bias.copy_(bias)

    def loss(self) -> Tensor:
        return (self.model(self.x) - self.y).square().mean() / 2

    def penalty(self) -> Tensor:
        """Equation 3 as written: a term for every task."""
        terms = [
            (precision[name] * (p - anchor[name]) ** 2).sum()
            for precision, anchor in self.wells
            for name, p in self.model.named_parameters()
        ]
        return self.memory.strength / 2 * torch.stack(terms).sum()

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def minimum(self, weight_decay: float = 0.0) -> Tensor:
        """The minimum of loss + penalty, by a quasi-Newton method on the sum as written."""
        problem = copy.deepcopy(self)
        optimizer = LBFGS(
            problem.model.parameters(),
            max_iter=500,
            tolerance_grad=1e-13,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            norm = sum(p.square().sum() for p in problem.model.parameters())
            total = problem.loss() + problem.penalty() + weight_decay / 2 * norm
            total.backward()
            return total

        optimizer.step(closure)
        return problem.weights()


def one_step(problem: Problem, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    problem.loss().backward()
    optimizer.step()


def train(problem: Problem, optimizer: Optimizer, sign: float = 1.0) -> None:
    for _ in range(250):
        optimizer.zero_grad()
        (sign * problem.loss()).backward()
        optimizer.step()
