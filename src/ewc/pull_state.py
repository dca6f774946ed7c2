"""What pulls on the weights at one moment, for one memory or for several of them together."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ewc.sharding import elementwise
from ewc.wells import Well, add, energy


class PullState(NamedTuple):
    """The model's parameters by name, the well that pulls on them, and the strength λ.

    A weight that is computed from parameters may be in the place of one; then `sources` has these.
    """

    parameters: Mapping[str, Tensor]
    well: Well
    strength: float
    sources: Mapping[str, Sequence[Tensor]] = MappingProxyType({})

    def moved_by(self, name: str) -> Sequence[Tensor]:
        """Return the parameters that move a weight: itself, or what it is computed from."""
        return self.sources.get(name, (self.parameters[name],))

    def penalty(self) -> Tensor:
        """Return (λ / 2) times the energy of the well."""
        return self.strength / 2 * energy(self.well, self.parameters)


def combined(states: Sequence[PullState]) -> PullState:
    """Return one state whose penalty is the sum of all: Σ λP around the mean of the anchors.

    Parameters are matched by identity, because memories may know them by different names.
    """
    strength = max(state.strength for state in states)
    names: dict[int, str] = {}
    parameters: dict[str, Tensor] = {}
    sources: dict[str, Sequence[Tensor]] = {}
    total = Well()
    for number, state in enumerate(states):
        factor, well = state.strength / strength, state.well  # at most 1: no precision overflows
        scale = partial(torch.mul, other=factor)
        new = {
            name: names.setdefault(id(state.parameters[name]), f"{number}.{name}")
            for name in well.precision
        }
        parameters |= {new[name]: state.parameters[name] for name in new}
        sources |= {new[name]: state.sources[name] for name in new if name in state.sources}
        scaled = Well(
            {new[name]: elementwise(scale, tensor) for name, tensor in well.precision.items()},
            {new[name]: tensor for name, tensor in well.anchor.items()},
            factor * well.bottom,
            {new[name]: tensor for name, tensor in well.remainder.items()},
        )
        total = add(total, scaled)
    return PullState(parameters, total, strength, sources)
