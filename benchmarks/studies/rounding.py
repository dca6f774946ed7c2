"""Where weights come to rest that are kept in bfloat16: how much of the pull is rounded away.

The loss is a noisy quadratic with its minimum at t, and the memory holds the weights at m with the
same curvature. So the minimum of loss + penalty is halfway: (θ − m) / (t − m) = 0.5.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import ewc
from ewc.step_size import How

STEPS = 4000
NOISE = 0.3  # standard deviation of the gradients' noise; t − m has 0.1
OPTIMIZERS: tuple[tuple[Callable[..., Optimizer], float], ...] = (
    (SGD, 3e-2),
    (SGD, 3e-3),
    (Adam, 1e-2),
    (Adam, 1e-3),
)


def rest_point(
    make: Callable[..., Optimizer], lr: float, dtype: torch.dtype, how: How, steps: int = STEPS
) -> float:
    """Return the mean of (θ − m) / (t − m) over the second half of a training."""
    random = torch.Generator().manual_seed(0)
    model = nn.Linear(60, 60, bias=False)
    with torch.no_grad():
        model.weight.copy_(0.1 * torch.randn(60, 60, generator=random))
    model = model.to(dtype)
    memory = ewc.EWC(model, strength=1.0)
    memory.anchor(1.0)
    start = model.weight.detach().float().clone()
    target = start + 0.1 * torch.randn(60, 60, generator=random)
    optimizer = make(model.parameters(), lr=lr)
    memory.attach(optimizer, how=how)
    total = torch.zeros(60, 60)
    for step in range(steps):
        noise = NOISE * torch.randn(60, 60, generator=random)
        model.weight.grad = (model.weight.detach().float() - target + noise).to(dtype)
        optimizer.step()
        total += model.weight.detach().float() if 2 * step >= steps else 0.0
    return _share(total / (steps - steps // 2) - start, target - start)


def _share(moved: Tensor, wanted: Tensor) -> float:
    """Return the c with the smallest error of moved = c · wanted."""
    return float((moved * wanted).sum() / wanted.square().sum())


def main() -> None:
    """Print a table."""
    warnings.simplefilter("ignore", ewc.EWCWarning)
    print(f"{'':14}{'float32':>20}{'bfloat16':>20}")
    print(f"{'':14}{'proximal':>10}{'gradient':>10}{'proximal':>10}{'gradient':>10}")
    for make, lr in OPTIMIZERS:
        cells = [
            rest_point(make, lr, dtype, how)
            for dtype in (torch.float32, torch.bfloat16)
            for how in ("proximal", "gradient")
        ]
        name = getattr(make, "__name__", str(make))
        print(f"{name} {lr:g}".ljust(14) + "".join(f"{cell:>10.2f}" for cell in cells))


if __name__ == "__main__":
    main()
