"""The Q-network: shared weights, and separate gains and biases for each context at every layer.

    y = (W x + b_c) g_c,   followed by a ReLU except in the last layer

All contexts share W, which EWC protects. b_c and g_c are a few numbers per unit that change only
while context c is trained, so they need no protection.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Architecture(NamedTuple):
    """Convolutions as (filters, kernel, stride), followed by one layer of hidden units."""

    convolutions: tuple[tuple[int, int, int], ...]
    hidden: int


NETWORKS = {
    "paper": Architecture(((32, 8, 4), (64, 4, 2), (128, 3, 1)), 1024),
    "nature": Architecture(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    # For 42x42 pixels.
    "small": Architecture(((32, 6, 6), (64, 3, 2)), 256),
    "small-wide": Architecture(((64, 6, 6), (128, 3, 2)), 512),
    # For the 10x10 pixels of MinAtar.
    "minatar": Architecture(((16, 3, 1),), 128),
    "minatar-wide": Architecture(((32, 3, 1),), 256),
    "minatar-pool": Architecture(((48, 3, 1),), 768),
}

SHARED = "layers.*"  # selects the parameters that all contexts share


class GainsAndBiases(nn.Module):
    """The parameters of one context: two vectors per layer.

    Args:
        widths: units of each layer.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.gains = nn.ParameterList(torch.ones(width) for width in widths)
        self.biases = nn.ParameterList(torch.zeros(width) for width in widths)


class QNetwork(nn.Module):
    """Computes the action values of a batch of states in the context last chosen with `enter`.

    Args:
        architecture: its layers.
        state_shape: channels, height and width of a state.
        num_actions: number of actions.
        seed: seed of the initial weights.
    """

    def __init__(
        self,
        architecture: Architecture,
        state_shape: tuple[int, int, int],
        num_actions: int,
        seed: int,
    ) -> None:
        super().__init__()
        channels, height, width = state_shape
        layers: list[nn.Module] = []
        self.widths: list[int] = []
        for filters, kernel, stride in architecture.convolutions:
            layers.append(nn.Conv2d(channels, filters, kernel, stride, bias=False))
            channels = filters
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
            if min(height, width) < 1:
                raise ValueError(f"frames of {state_shape[1:]} are too small for {architecture}")
            self.widths.append(filters)
        units = channels * height * width
        for outputs in (architecture.hidden, num_actions):
            layers.append(nn.Linear(units, outputs, bias=False))
            units = outputs
            self.widths.append(outputs)
        self.layers = nn.ModuleList(layers)
        self.contexts = nn.ModuleList()
        self.context = 0
        self._draw_weights(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw_weights(self, generator: torch.Generator) -> None:
        """Draw weights uniformly within ±1/√(incoming units) (see `config`, 3)."""
        for layer in self.layers:
            weight = layer.weight
            assert isinstance(weight, Tensor)
            bound = weight[0].numel() ** -0.5
            weight.uniform_(-bound, bound, generator=generator)

    def add_context(self) -> int:
        """Add a context with gains of 1 and biases of 0; return its number."""
        self.contexts.append(GainsAndBiases(self.widths).to(next(self.layers.parameters()).device))
        return len(self.contexts) - 1

    def enter(self, context: int) -> None:
        """Use the gains and biases of this context from now on."""
        if not 0 <= context < len(self.contexts):
            raise ValueError(
                f"expected a context of 0..{len(self.contexts) - 1}, got {context}: "
                "add_context() makes a new one"
            )
        self.context = context

    def scaled(self, states: Tensor) -> Tensor:
        """Return states with values 0..255 as floating-point numbers from 0 to 1.

        The replay memory keeps bytes because they take a quarter of the space.
        """
        dtype = self.layers[0].weight.dtype
        assert isinstance(dtype, torch.dtype)
        # Reordering bytes is faster than reordering floating-point numbers.
        return states.contiguous(memory_format=torch.channels_last).to(dtype).mul_(1 / 255)

    def forward(self, states: Tensor, *, folded: bool = False) -> Tensor:
        """Return Q(s, ·) of states [n, channels, height, width], as bytes or already `scaled`.

        `folded` multiplies the weights of convolutions by the gains, (g W) x + g b: the same values
        in less time. For the Fisher of W the plain form is faster.
        """
        x = self.scaled(states) if states.dtype == torch.uint8 else states
        own = self.contexts[self.context]
        assert isinstance(own, GainsAndBiases)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            weight, gain, bias = layer.weight, own.gains[number], own.biases[number]
            assert isinstance(weight, Tensor)
            if not isinstance(layer, nn.Conv2d):
                # With channels last, as the numbers are in memory, flattening copies nothing.
                x = F.linear(x.movedim(1, -1).flatten(1), weight, bias) * gain
            elif folded:
                x = F.conv2d(x, weight * gain[:, None, None, None], bias * gain, layer.stride)
            else:
                x = F.conv2d(x, weight, bias, layer.stride) * gain[:, None, None]
            if number < last:
                x = torch.relu_(x)
        return x
