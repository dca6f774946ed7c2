"""The Q-network: shared weights, and separate gains and biases for each context at every layer.

    y = (W x + b_c) g_c,   followed by a ReLU except in the last layer

All contexts share W, which EWC protects. b_c and g_c are a few numbers per unit that change only
while context c is trained, so they need no protection.

With gates, each context starts with a random part of its gains at zero. A ReLU passes no gradient
at zero, so these gains stay zero: the context does without those units, and shares fewer weights
with the others (context-dependent gating, Masse et al. 2018, by the paper's own gains).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ewc_paper.seeding import derive_seed


class Architecture(NamedTuple):
    """Convolutions as (filters, kernel, stride), followed by one layer of hidden units."""

    convolutions: tuple[tuple[int, int, int], ...]
    hidden: int


NETWORKS = {
    "paper": Architecture(((32, 8, 4), (64, 4, 2), (128, 3, 1)), 1024),
    "nature": Architecture(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    # Those of data-efficient Rainbow for 84x84 pixels, and a small one for 42x42.
    "efficient": Architecture(((32, 5, 5), (64, 5, 5)), 256),
    "small": Architecture(((32, 6, 6), (64, 3, 2)), 256),
    # For the 10x10 pixels of MinAtar.
    "minatar": Architecture(((16, 3, 1),), 128),
    "minatar-wide": Architecture(((32, 3, 1),), 256),
}

SHARED = "layers.*"  # selects the parameters that all contexts share


class GainsAndBiases(nn.Module):
    """The parameters of one context: two vectors per layer."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.gains = nn.ParameterList(torch.ones(width) for width in widths)
        self.biases = nn.ParameterList(torch.zeros(width) for width in widths)


class QNetwork(nn.Module):
    """Computes the action values of a batch of states in the context last chosen with `enter`.

    Args:
        network: the name of an architecture in `NETWORKS`.
        state_shape: channels, height and width of a state.
        num_actions: number of actions.
        seed: seed of the initial weights and of the gates.
        gates: fraction of the hidden units that each context does without.
        filter_gates: the same for the filters of each convolution.
    """

    def __init__(
        self,
        network: str,
        state_shape: tuple[int, int, int],
        num_actions: int,
        seed: int,
        *,
        gates: float = 0.0,
        filter_gates: float = 0.0,
    ) -> None:
        super().__init__()
        if network not in NETWORKS:
            raise ValueError(f"expected a network of {', '.join(NETWORKS)}, got {network!r}")
        architecture = NETWORKS[network]
        channels, height, width = state_shape
        layers: list[nn.Module] = []
        self.widths: list[int] = []
        for filters, kernel, stride in architecture.convolutions:
            layers.append(nn.Conv2d(channels, filters, kernel, stride, bias=False))
            channels = filters
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
            if min(height, width) < 1:
                raise ValueError(f"frames of {state_shape[1:]} are too small for {network!r}")
            self.widths.append(filters)
        units = channels * height * width
        for outputs in (architecture.hidden, num_actions):
            layers.append(nn.Linear(units, outputs, bias=False))
            units = outputs
            self.widths.append(outputs)
        self.layers = nn.ModuleList(layers)
        self.contexts = nn.ModuleList()
        self._gates = [*[filter_gates] * len(architecture.convolutions), gates, 0.0]
        self._seed = seed
        self.context = 0
        self._leak = 0.0
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
        """Add a context with biases of 0 and gains of 1 but for its gates; return its number."""
        context = len(self.contexts)
        own = GainsAndBiases(self.widths)
        generator = torch.Generator().manual_seed(derive_seed(self._seed, "gates", context))
        with torch.no_grad():
            for gain, gates in zip(own.gains, self._gates, strict=True):
                closed = torch.randperm(len(gain), generator=generator)[: int(gates * len(gain))]
                gain[closed] = 0.0
        self.contexts.append(own.to(next(self.layers.parameters()).device))
        return context

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
        with less memory traffic. For the Fisher of W the plain form is faster.
        """
        *_, values = self.layer_outputs(states, folded=folded)
        return values

    def layer_outputs(self, states: Tensor, *, folded: bool = False) -> Iterator[Tensor]:
        """Yield the output of each layer, [n, units, ...]; the last is the action values."""
        x = self.scaled(states) if states.dtype == torch.uint8 else states
        own = self.contexts[self.context]
        assert isinstance(own, GainsAndBiases)
        last = len(self.layers) - 1
        for number, (layer, gain, bias) in enumerate(
            zip(self.layers, own.gains, own.biases, strict=True)
        ):
            weight = layer.weight
            assert isinstance(weight, Tensor)
            if not isinstance(layer, nn.Conv2d):
                # With channels last, as the numbers are in memory, flattening copies nothing.
                x = F.linear(x.movedim(1, -1).flatten(1), weight, bias) * gain
            elif folded:
                x = F.conv2d(x, weight * gain[:, None, None, None], bias * gain, layer.stride)
            else:
                x = F.conv2d(x, weight, bias, layer.stride) * gain[:, None, None]
            if number < last:
                x = _rectified(x, self._leak)
            yield x

    @contextmanager
    def leaking(self, slope: float) -> Iterator[None]:
        """Let gradients pass through inactive units, times `slope`; the values stay the same."""
        self._leak = slope
        try:
            yield
        finally:
            self._leak = 0.0


def _rectified(x: Tensor, leak: float) -> Tensor:
    """max(x, 0), whose gradient where x < 0 is `leak` instead of 0."""
    if leak == 0:
        return torch.relu_(x)
    below = leak * x.clamp(max=0)
    return torch.relu(x) + (below - below.detach())
