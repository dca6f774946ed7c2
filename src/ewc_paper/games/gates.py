"""Gates: each context uses a random part of the units of each layer, and so of the weights.

    W_c = W[units of c in the layer, units of c in the layer before]

All contexts cut their weights from one pool. Two contexts share only the weights between units that
both use (context-dependent gating, Masse et al. 2018). It is the same as gains of zero behind which
units are closed, the paper's own mechanism, but costs as much as the network that is left.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ewc_paper.games.network import Architecture, QNetwork
from ewc_paper.seeding import derive_seed


def narrowed(architecture: Architecture, gates: float, filter_gates: float) -> Architecture:
    """Return the part of a network that one context uses.

    Args:
        architecture: the whole network.
        gates: fraction of the hidden units that a context does without.
        filter_gates: the same for the filters of each convolution.
    """
    convolutions = tuple(
        (_open(filters, filter_gates), kernel, stride)
        for filters, kernel, stride in architecture.convolutions
    )
    return Architecture(convolutions, _open(architecture.hidden, gates))


def _open(width: int, closed: float) -> int:
    return width - int(closed * width)


class Gates:
    """Which units of a network each context uses.

    Args:
        whole: the network with all units.
        part: the network that one context uses, see `narrowed`.
        seed: seed of the choice of units, together with the number of the context.
    """

    def __init__(self, whole: QNetwork, part: QNetwork, seed: int) -> None:
        self._widths = list(zip(whole.widths, part.widths, strict=True))
        self._seed = seed
        self._units: dict[int, list[Tensor]] = {}

    def units(self, context: int) -> list[Tensor]:
        """Return the indices of the units that a context uses, by layer, in ascending order."""
        if context not in self._units:
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "gates", context))
            self._units[context] = [
                (torch.randperm(width, generator=generator) >= width - used).nonzero().squeeze(1)
                for width, used in self._widths
            ]
        return self._units[context]

    def cut(self, pool: Mapping[str, Tensor], context: int) -> dict[str, Tensor]:
        """Return the weights of a context, copied from those of the whole network, by name."""
        return {name: weight[self._places(name, weight, context)] for name, weight in pool.items()}

    def put(self, part: Mapping[str, Tensor], context: int, pool: Mapping[str, Tensor]) -> None:
        """Write the weights of a context back into those of the whole network."""
        for name, weight in pool.items():
            weight[self._places(name, weight, context)] = part[name]

    def moved(
        self, part: Mapping[str, Tensor], context: int, other: int, pool: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return numbers per weight of one context for another; 0 for weights not in common."""
        whole = {name: torch.zeros_like(weight) for name, weight in pool.items()}
        self.put(part, context, whole)
        return self.cut(whole, other)

    def _places(self, name: str, weight: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """Return rows and columns of a context in the weights `layers.<number>.weight`."""
        number, units = int(name.split(".")[1]), self.units(context)
        rows = units[number].to(weight.device)
        if number == 0:
            columns = torch.arange(weight.shape[1], device=weight.device)
        else:
            # A linear layer after a convolution sees all filters of a place before the next place.
            inputs, width = units[number - 1].to(weight.device), self._widths[number - 1][0]
            starts = torch.arange(0, weight.shape[1], width, device=weight.device)
            columns = (starts[:, None] + inputs).flatten()
        return rows[:, None], columns
