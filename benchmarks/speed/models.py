"""The models that are measured, each with batches of random data of the right shape."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batches = list[tuple[Tensor, Tensor]]


def mlp() -> nn.Module:
    """Create the network of the experiments on permuted MNIST, 784-400-400-10."""
    return nn.Sequential(
        nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)
    )


def mlp_batch(size: int) -> tuple[Tensor, Tensor]:
    return torch.rand(size, 784), torch.randint(10, (size,))


def dqn() -> nn.Module:
    """Create the paper's network for Atari, from four frames of 84x84 to 18 actions."""
    return nn.Sequential(
        nn.Conv2d(4, 32, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 128, kernel_size=3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * 7 * 7, 1024),
        nn.ReLU(),
        nn.Linear(1024, 18),
    )


def dqn_batch(size: int) -> tuple[Tensor, Tensor]:
    return torch.rand(size, 4, 84, 84), torch.randint(18, (size,))


VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS = 50257, 256, 4, 4, 128


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.activation = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.query_key_value(self.norm_1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        x = x + self.narrow(self.activation(self.widen(self.norm_2(x))))
        return x


class Transformer(nn.Module):
    """A small GPT-2: learned positions, and the output layer shares the weight of the embedding."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[-1], device=tokens.device)
        embedded = self.tokens(tokens) + self.positions(positions)
        logits: Tensor = self.head(self.norm(self.blocks(embedded)))
        return logits


def transformer_batch(size: int) -> tuple[Tensor, Tensor]:
    shape = (size, POSITIONS)
    return torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape)


def total_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return −log p summed over all samples; for sequences, also over all positions."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="sum")


@dataclass(frozen=True)
class Case:
    """One model, measured on a number of samples in batches of one size.

    Args:
        name: name of the model.
        model: creates the model.
        batch: creates a batch of a given size.
        samples: number of samples.
        batch_size: samples per batch.
        rounds: number of times that each workload is measured.
        exact: whether to measure the exact Fisher too; its cost grows with the number of classes.
    """

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    samples: int
    batch_size: int
    rounds: int
    exact: bool = False

    def make(self) -> tuple[nn.Module, Batches]:
        """Create the model and all batches."""
        torch.manual_seed(0)
        model = self.model()
        return model, [self.batch(self.batch_size) for _ in range(self.samples // self.batch_size)]


MLP = "MLP 784-400-400-10"
DQN = "the paper's DQN"
TRANSFORMER = "GPT-2-shaped transformer"
CASES = [
    Case(MLP, mlp, mlp_batch, samples=10_240, batch_size=512, rounds=8, exact=True),
    Case(MLP, mlp, mlp_batch, samples=10_240, batch_size=128, rounds=8, exact=True),
    Case(DQN, dqn, dqn_batch, samples=3200, batch_size=128, rounds=3),
    Case(DQN, dqn, dqn_batch, samples=3200, batch_size=32, rounds=3),
    Case(TRANSFORMER, Transformer, transformer_batch, samples=32, batch_size=8, rounds=3),
]
