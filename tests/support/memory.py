"""Small models with a memory, and what it must do to them.

A network with equation 3 written out, a regression whose minimum is known, the steps that an
optimizer makes of a gradient that stays the same, and optimizers of other projects.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ewc.memory import EWC
from ewc.step_size import step_size_rule


def make_model(seed=0, outputs=3):
    torch.manual_seed(seed)
    model = nn.Sequential()
    model.add_module("body", nn.Linear(4, 5))
    model.add_module("act", nn.Tanh())
    model.add_module("head", nn.Linear(5, outputs))
    return model.double()


def make_batches(seed, count=2, outputs=3):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(6, 4, generator=generator, dtype=torch.float64),
            torch.randint(outputs, (6,), generator=generator),
        )
        for _ in range(count)
    ]


def move(model, seed, size=0.3):
    """Stand for training: put the weights somewhere else."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p))


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equation_3(model, wells, strength):
    """Σ_t (λ/2) Σ_i F_ti (θ_i − θ*_ti)², one term a task and parameter."""
    parameters = dict(model.named_parameters())
    return sum(
        strength / 2 * (f[name] * (parameters[name] - anchor[name]) ** 2).sum()
        for f, anchor in wells
        for name in f
    )


def assert_same_pull(model, penalty, expected):
    """The same value and the same gradient."""
    parameters = list(model.parameters())
    torch.testing.assert_close(penalty, expected, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(
        torch.autograd.grad(penalty, parameters, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True),
        rtol=1e-11,
        atol=1e-14,
    )


def learn(memory, model, task, seed, **options):
    """Move somewhere, consolidate there, and return the well that this must have made."""
    move(model, seed)
    fisher = memory.consolidate(make_batches(seed), task=task, **options)
    memory.penalty()
    return fisher, weights(model)


def one_step(model, optimizer, batch):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


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

    def step(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        self.loss().backward()
        optimizer.step()

    def train(self, optimizer: Optimizer, sign: float = 1.0, steps: int = 250) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            (sign * self.loss()).backward()
            optimizer.step()


def distances(problem: Problem, optimizer: Optimizer, steps: int) -> list[float]:
    """How far the weights, at the minimum of loss + penalty first, are from it after half of it."""
    minimum = Problem(problem.memory.strength).minimum()
    problem.set_weights(minimum[:4].unsqueeze(0), minimum[4:])
    problem.memory.attach(optimizer)
    found = []
    for _ in range(steps):
        problem.step(optimizer)
        found.append(float((problem.weights().double() - minimum).abs().max()))
    return found[steps // 2 :]


def step_sizes(
    make: Callable[[list[nn.Parameter]], Optimizer], steps: int, sign: float = 1.0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each step the η of its rule, and update / gradient as they were."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(3, 4).double()), nn.Parameter(torch.randn(5).double())]
    optimizer = make(weights)
    gradients = [torch.randn_like(weight) for weight in weights]
    for _ in range(steps):
        before = [weight.detach().clone() for weight in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = sign * gradient
        optimizer.step()
        (group,) = optimizer.param_groups
        states = [optimizer.state[weight] for weight in weights]
        step = step_size_rule(optimizer)(group, weights, states).rooted()
        known = (
            [step.rate / s for s in step.scale]
            if step.scale
            else [step.rate + 0 * w.detach() for w in weights]
        )
        moved = [
            (old - weight.detach()) / gradient
            for old, weight, gradient in zip(before, weights, gradients, strict=True)
        ]
        yield (
            torch.cat([one.flatten() for one in known]),
            torch.cat([one.flatten() for one in moved]),
        )


class Plain(Optimizer):
    """Gradient descent that nobody knows of, with steps that are twice as large as its lr."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=2 * group["lr"])


class SAM(Optimizer):
    """Sharpness-aware minimization (Foret et al. 2021) as in davda54/sam, without its options."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], base: type[Optimizer], rho: float, **options: Any
    ) -> None:
        super().__init__(parameters, {"rho": rho})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb to where the loss is largest nearby."""
        pairs = [(p, p.grad) for group in self.param_groups for p in group["params"]]
        norm = torch.stack([gradient.norm() for _, gradient in pairs]).norm()
        for parameter, gradient in pairs:
            self.state[parameter]["old"] = parameter.clone()
            parameter.add_(gradient * (self.param_groups[0]["rho"] / (norm + 1e-12)))

    @torch.no_grad()
    def second_step(self) -> None:
        """Step from where it began, with the gradient of up there."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(self.state[parameter]["old"])
        self.base_optimizer.step()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
        self.first_step()
        with torch.enable_grad():
            self.zero_grad()
            closure()
        self.second_step()
