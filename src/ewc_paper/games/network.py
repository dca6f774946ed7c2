"""The Q-network: shared weights, and gains and biases of each context's own at every layer.

    y = (W x + b_c) g_c,   then a ReLU but for the last layer

W is shared by all contexts and is what EWC protects; b_c and g_c are a few numbers a unit that only
context c ever changes, so they need no protection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Architecture(NamedTuple):
    """Convolutions as (filters, kernel, stride), then one layer of hidden units."""

    convolutions: tuple[tuple[int, int, int], ...]
    hidden: int


NETWORKS = {
    "paper": Architecture(((32, 8, 4), (64, 4, 2), (128, 3, 1)), 1024),
    "nature": Architecture(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    # The data-efficient Rainbow's, for 84x84, and a small one for 42x42.
    "efficient": Architecture(((32, 5, 5), (64, 5, 5)), 256),
    "small": Architecture(((32, 6, 6), (64, 3, 2)), 256),
    # For the 10x10 worlds.
    "minatar": Architecture(((16, 3, 1),), 128),
    "minatar-wide": Architecture(((32, 3, 1),), 256),
}

SHARED = "layers.*"  # the parameters that contexts share, as a selection for EWC


class Context(nn.Module):
    """The gains and biases of one context, a pair of vectors a layer."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.gains = nn.ParameterList(torch.ones(width) for width in widths)
        self.biases = nn.ParameterList(torch.zeros(width) for width in widths)


class QNetwork(nn.Module):
    """Action values of a batch of states, in the context that was last chosen with `enter`."""

    def __init__(
        self, network: str, state_shape: tuple[int, int, int], num_actions: int, seed: int
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
        self.context = 0
        self._leak = 0.0
        self._draw_weights(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw_weights(self, generator: torch.Generator) -> None:
        """Uniform within ±1/√(incoming units), as in the appendix (see `settings`, 3)."""
        for layer in self.layers:
            weight = layer.weight
            assert isinstance(weight, Tensor)
            bound = weight[0].numel() ** -0.5
            weight.uniform_(-bound, bound, generator=generator)

    def add_context(self) -> int:
        """A new context with gains of 1 and biases of 0; returns its number."""
        reference = next(self.layers.parameters())
        self.contexts.append(Context(self.widths).to(reference.device))
        return len(self.contexts) - 1

    def enter(self, context: int) -> None:
        """Compute in this context from now on."""
        if not 0 <= context < len(self.contexts):
            raise ValueError(
                f"expected a context of 0..{len(self.contexts) - 1}, got {context}: "
                "add_context() makes a new one"
            )
        self.context = context

    def scaled(self, states: Tensor) -> Tensor:
        """States with values 0..255 as numbers from 0 to 1.

        Done here and not in the replay memory, where a state takes a quarter of the room as it is.
        """
        dtype = self.layers[0].weight.dtype
        assert isinstance(dtype, torch.dtype)
        # Bytes are put in order faster than the numbers that they become.
        return states.contiguous(memory_format=torch.channels_last).to(dtype).mul_(1 / 255)

    def forward(self, states: Tensor, *, folded: bool = False) -> Tensor:
        """Q(s, ·) of states [n, channels, height, width], as bytes or `scaled` already.

        `folded` takes the gains of convolutions into their weights, (g W) x + g b: the same values
        with less to read and write. For the Fisher of W the plain form is the faster one.
        """
        *_, values = self.layer_outputs(states, folded=folded)
        return values

    def layer_outputs(self, states: Tensor, *, folded: bool = False) -> Iterator[Tensor]:
        """What each layer passes on, [n, units, ...], the action values last."""
        x = self.scaled(states) if states.dtype == torch.uint8 else states
        own = self.contexts[self.context]
        assert isinstance(own, Context)
        last = len(self.layers) - 1
        for number, (layer, gain, bias) in enumerate(
            zip(self.layers, own.gains, own.biases, strict=True)
        ):
            weight = layer.weight
            assert isinstance(weight, Tensor)
            if not isinstance(layer, nn.Conv2d):
                # In the order the numbers lie in, channels last, flattening costs nothing.
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
        """Let gradients through units that are off, times `slope`; the values stay the same."""
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
