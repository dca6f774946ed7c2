"""The model and the optimizers that programs for the memory work on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

BETAS = (0.8, 0.9)
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda p, **o: SGD(p, lr=0.1, **o),
    "sgd momentum": lambda p, **o: SGD(p, lr=0.03, momentum=0.7, **o),
    "sgd dampened": lambda p, **o: SGD(p, lr=0.1, momentum=0.7, dampening=0.4, **o),
    "sgd nesterov": lambda p, **o: SGD(
        p, lr=0.03, momentum=0.7, nesterov=True, weight_decay=0.1, **o
    ),
    "adam": lambda p, **o: Adam(p, lr=0.02, eps=1e-2, betas=BETAS, weight_decay=0.1, **o),
    "amsgrad": lambda p, **o: Adam(p, lr=0.02, eps=1e-2, betas=BETAS, amsgrad=True, **o),
    "adamw": lambda p, **o: AdamW(p, lr=0.02, eps=1e-2, betas=BETAS, weight_decay=0.3, **o),
    "rmsprop": lambda p, **o: RMSprop(p, lr=0.02, eps=1e-2, alpha=0.8, **o),
    "rmsprop momentum": lambda p, **o: RMSprop(p, lr=0.02, eps=1e-2, momentum=0.5, **o),
    "rmsprop centered": lambda p, **o: RMSprop(p, lr=0.02, eps=1e-2, centered=True, **o),
}


class Network(nn.Module):
    """Two layers, a norm, a gain, which is a parameter without dimensions, and a buffer."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, outputs)
        self.gain = nn.Parameter(torch.ones(()))
        self.register_buffer("shift", torch.zeros(4))
        self.double()
        self.phase: nn.Parameter | None = None  # a complex parameter, in some programs

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.body(x) + self.shift).tanh()
        if self.phase is not None:
            hidden = (hidden * self.phase).real
        return self.gain * self.head(hidden)


def drawn(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """A standard normal tensor for each parameter."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in model.named_parameters()
    }
