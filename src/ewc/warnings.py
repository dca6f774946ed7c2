"""The package's warnings, and the signs of a memory that is silently off."""

import warnings
from collections.abc import Mapping

from torch import Tensor


class EWCWarning(UserWarning):
    """Something runs, but most likely not as it was meant."""


def warn_if_zero(fisher: Mapping[str, Tensor]) -> None:
    """Warn of a Fisher that holds nothing at all, or nothing in a whole layer."""
    alive: dict[str, bool] = {}
    for name, tensor in fisher.items():
        layer = name.rpartition(".")[0] or name
        alive[layer] = alive.get(layer, False) or bool(tensor.any())
    dead = [layer for layer, is_alive in alive.items() if not is_alive]
    if len(dead) == len(alive):
        _warn("the Fisher is zero for every weight: this task will not be held at all")
    elif dead:
        _warn(f"the Fisher is zero for all of {', '.join(dead)}: these layers will not be held")


def fingerprint(parameters: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Return two numbers a parameter that tell later, without a copy, whether it moved."""
    values = {name: p.detach().cpu().double() for name, p in parameters.items()}
    return {name: (float(x.sum()), float(x.square().sum())) for name, x in values.items()}


def warn_if_moved(
    before: Mapping[str, tuple[float, float]], parameters: Mapping[str, Tensor]
) -> None:
    """Warn if weights left their `fingerprint`; asked when no pull was taken in between."""
    now = fingerprint({name: p for name, p in parameters.items() if name in before})
    if any(now[name] != before[name] for name in now):
        _warn(
            "the weights moved since the last consolidate, but nothing pulled on them: "
            "call memory.attach(optimizer), or add memory.penalty() to the loss"
        )


def _warn(message: str) -> None:
    # The frames between: a check of this file, and the method of EWC that asked for it.
    warnings.warn(message, EWCWarning, stacklevel=4)
