"""What an optimizer makes of a gradient that stays the same: its step size, as it is."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.step_size import step_size_rule


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
