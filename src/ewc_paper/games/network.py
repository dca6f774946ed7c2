"""The Q-network: shared weights, and separate gains and biases for each context at every layer.

    y = (W x + b_c) g_c,   followed by a ReLU except in the last layer

All contexts share W, which EWC protects. b_c and g_c are a few numbers per unit that change only
while context c is trained, so they need no protection.

With gates, each context starts with a random part of its gains at zero. A ReLU passes no gradient
at zero, so these gains stay zero: the context does without those units, and shares fewer weights
with the others (context-dependent gating, Masse et al. 2018, by the paper's own gains).
"""

from collections.abc import Iterator
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
    # For 42x42 pixels.
    "small": Architecture(((32, 6, 6), (64, 3, 2)), 256),
    "small-wide": Architecture(((64, 6, 6), (128, 3, 2)), 512),
    # For the 10x10 pixels of MinAtar.
    "minatar": Architecture(((16, 3, 1),), 128),
    "minatar-wide": Architecture(((32, 3, 1),), 256),
}

SHARED = "layers.*"  # selects the parameters that all contexts share


class GainsAndBiases(nn.Module):
    """The parameters of one context: two vectors per layer.

    Args:
        gates: per layer, True for the units that the context uses.
    """

    def __init__(self, gates: list[Tensor]) -> None:
        super().__init__()
        self.gains = nn.ParameterList(gate.float() for gate in gates)
        self.biases = nn.ParameterList(torch.zeros(len(gate)) for gate in gates)
        for number, gate in enumerate(gates):
            used = None if gate.all() else gate.nonzero().squeeze(1)
            self.register_buffer(f"used_{number}", used, persistent=False)

    def used(self, layer: int) -> Tensor | None:
        """Return the indices of the units that the context uses, or None if it uses all."""
        indices: Tensor | None = getattr(self, f"used_{layer}")
        return indices


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
        generator = torch.Generator().manual_seed(derive_seed(self._seed, "gates", context))
        gates = [
            torch.randperm(width, generator=generator) >= int(closed * width)
            for width, closed in zip(self.widths, self._gates, strict=True)
        ]
        self.contexts.append(GainsAndBiases(gates).to(next(self.layers.parameters()).device))
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

        `folded` leaves out the units behind closed gates, and multiplies the weights of
        convolutions by the gains, (g W) x + g b: the same values in less time. For the Fisher of W
        the plain form is faster.
        """
        *_, values = self.layer_outputs(states, folded=folded)
        return values

    def layer_outputs(self, states: Tensor, *, folded: bool = False) -> Iterator[Tensor]:
        """Yield the output of each layer, [n, units, ...]; the last is the action values.

        The units are those that the context uses if `folded`, otherwise all.
        """
        x = self.scaled(states) if states.dtype == torch.uint8 else states
        own = self.contexts[self.context]
        assert isinstance(own, GainsAndBiases)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            weight, gain, bias = self._weights(number, own, in_use=folded)
            if not isinstance(layer, nn.Conv2d):
                # With channels last, as the numbers are in memory, flattening copies nothing.
                x = F.linear(x.movedim(1, -1).flatten(1), weight, bias) * gain
            elif folded:
                x = F.conv2d(x, weight * gain[:, None, None, None], bias * gain, layer.stride)
            else:
                x = F.conv2d(x, weight, bias, layer.stride) * gain[:, None, None]
            if number < last:
                x = torch.relu_(x)
            yield x

    def _weights(
        self, number: int, own: GainsAndBiases, *, in_use: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, gains and biases of a layer: all, or those `in_use` in a context."""
        weight, gain, bias = self.layers[number].weight, own.gains[number], own.biases[number]
        assert isinstance(weight, Tensor)
        if in_use and (units := own.used(number)) is not None:
            weight = weight.index_select(0, units)
            gain, bias = gain.index_select(0, units), bias.index_select(0, units)
        if in_use and number > 0 and (inputs := own.used(number - 1)) is not None:
            # A linear layer after a convolution sees all filters of a place before the next place.
            places = weight.shape[1] // self.widths[number - 1]
            starts = torch.arange(places, device=inputs.device) * self.widths[number - 1]
            weight = weight.index_select(1, (starts[:, None] + inputs).flatten())
        return weight, gain, bias
