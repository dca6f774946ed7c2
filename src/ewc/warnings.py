"""The package's warnings, and the signs of a memory that is silently off."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from types import FrameType

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
    """Return two numbers per parameter that tell later, without a copy, whether it moved."""
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


def warn_of_unowned(names: Sequence[str]) -> None:
    """Warn of held parameters that no attached optimizer moves, so that nothing pulls on them."""
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" * (len(names) > 5))
    _warn(
        f"the memory holds {shown}, but no optimizer that it is attached to has these parameters, "
        "so they are not pulled: they were replaced, or belong to another optimizer. Attach an "
        "optimizer that has them, or set requires_grad=False on them if they shall stay as they are"
    )


def warn_of_divergence(name: str, product: float, limit: float) -> None:
    """Warn of an explicit pull that cannot be stable."""
    _warn(
        f"how='gradient' is going to diverge: lr · strength · precision is {product:.3g} in "
        f"{name!r} and must stay below {limit:.3g} for this optimizer; "
        "use how='proximal', which is stable for every strength, or a smaller strength"
    )


def warn_of_standstill(share: float, strength: float) -> None:
    """Warn of a pull that lets hardly any weight move."""
    _warn(
        f"the pull undoes {1 - share:.1%} of the optimizer's step: with strength {strength:g} "
        "nearly all weights stand still and little new will be learned; try a smaller strength"
    )


def _warn(message: str) -> None:
    # Told at the first line outside of this package and of torch, which called its hooks.
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _root(frame) in ("ewc", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, EWCWarning, stacklevel=level)


def _root(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
