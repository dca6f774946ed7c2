"""The warnings of this package: training runs, but most likely not as intended."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from types import FrameType

from torch import Tensor

from ewc.sharding import any_nonzero, shard


class EWCWarning(UserWarning):
    """Training runs, but most likely not as intended.

    Example:
        >>> import warnings, torch, ewc
        >>> memory = ewc.EWC(torch.nn.Linear(2, 3), strength=1.0)
        >>> zero = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", ewc.EWCWarning)  # raise instead of warning
        ...     memory.consolidate(zero)
        Traceback (most recent call last):
            ...
        ewc.warnings.EWCWarning: the Fisher is zero for every weight: ...
    """


def warn(message: str) -> None:
    """Warn at the first line outside of this package and of torch, which calls our hooks."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _root_package(frame) in ("ewc", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, EWCWarning, stacklevel=level)


def warn_if_zero(fisher: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
    """Warn if the Fisher is zero everywhere, or in a whole layer that nothing else protects.

    Args:
        fisher: the Fisher of the new task.
        held: the precision of the tasks before it.
    """
    used = {name: any_nonzero(tensor) for name, tensor in fisher.items()}
    if not any(used.values()):
        warn("the Fisher is zero for every weight: this task will not be protected at all")
        return
    protected: dict[str, bool] = {}
    for name in fisher:
        layer = name.rpartition(".")[0] or name
        now = used[name] or (name in held and any_nonzero(held[name]))
        protected[layer] = protected.get(layer, False) or now
    if unused := [layer for layer, is_protected in protected.items() if not is_protected]:
        layers = ", ".join(unused)
        warn(f"the Fisher is zero for all of {layers}: these layers will not be protected")


def fingerprint(parameters: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Return two numbers per parameter, which show later, without a copy, whether it moved.

    Of a sharded parameter they are those of this process's shard.
    """
    values = {name: shard(p.detach()).cpu().double() for name, p in parameters.items()}
    return {name: (float(x.sum()), float(x.square().sum())) for name, x in values.items()}


def warn_if_moved(
    before: Mapping[str, tuple[float, float]], parameters: Mapping[str, Tensor]
) -> None:
    """Warn if the parameters no longer have the `fingerprint` that was taken before.

    Call it only if no pull acted on them in between.
    """
    now = fingerprint({name: p for name, p in parameters.items() if name in before})
    if any(now[name] != before[name] for name in now):
        warn(
            "the weights moved since the last consolidate, but nothing pulled on them: "
            "call memory.attach(optimizer), or add memory.penalty() to the loss"
        )


def warn_of_unowned(names: Sequence[str]) -> None:
    """Warn of protected parameters that no attached optimizer moves: nothing pulls on them."""
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" * (len(names) > 5))
    warn(
        f"the memory protects {shown}, but no optimizer that it is attached to has these "
        "parameters, so nothing pulls on them: they were replaced, or belong to another "
        "optimizer. Attach an optimizer that has them, or set requires_grad=False on them if "
        "they are not to be trained"
    )


def warn_of_divergence(name: str, product: float, limit: float) -> None:
    """Warn of a pull through the gradient that is not stable."""
    warn(
        f"how='gradient' will diverge: lr · strength · precision is {product:.3g} in {name!r} "
        f"and must stay below {limit:.3g} for this optimizer; "
        "use how='proximal', which is stable for every strength, or a smaller strength (a larger "
        "budget)"
    )


def warn_of_rounding(name: str, parameter: Tensor) -> None:
    """Warn of a pull on weights that are too coarse for it."""
    dtype = str(parameter.dtype).removeprefix("torch.")
    warn(
        f"{name!r} is kept in {dtype}: how='proximal' changes it after the optimizer's step, and "
        "changes below its rounding are lost, so the pull is too weak at small learning rates; "
        "keep the parameters in float32 and compute under autocast, or use how='gradient'"
    )


def warn_of_runaway() -> None:
    """Warn of a budget whose strength has grown until nothing was finite any more."""
    warn(
        "the estimated rise is not finite: the weights diverged. With how='gradient' or penalty() "
        "a budget can cause that, because it raises the strength beyond what an explicit penalty "
        "is stable for; use memory.attach(optimizer)"
    )


def warn_of_standstill(share: float, strength: float) -> None:
    """Warn of a pull that lets hardly any weight move."""
    warn(
        f"the pull undoes {1 - share:.1%} of the optimizer's step: with strength {strength:g} "
        "nearly all weights stand still and little new will be learned; try a smaller strength "
        "(a larger budget)"
    )


def _root_package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
