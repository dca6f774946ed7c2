"""Elastic weight consolidation: a task is remembered as a quadratic well around its solution.

The public surface: `EWC` is the memory and its pull on an optimizer, `fisher_diagonal` says how
much each weight matters to a task, `fisher_overlap` how much two tasks rely on the same weights,
`perturbed` shakes the weights to see what they bear, and `ForgetMeNot` says from what is observed
which task this is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ewc.importance import fisher_diagonal, fisher_overlap, fisher_overlap_by_layer
    from ewc.memory import EWC
    from ewc.perturbation import perturbed
    from ewc.recognition import ForgetMeNot
    from ewc.warnings import EWCWarning

__version__ = "0.1.0"

__all__ = [
    "EWC",
    "EWCWarning",
    "ForgetMeNot",
    "fisher_diagonal",
    "fisher_overlap",
    "fisher_overlap_by_layer",
    "perturbed",
]

_PLACES = {
    "EWC": "memory",
    "EWCWarning": "warnings",
    "ForgetMeNot": "recognition",
    "fisher_diagonal": "importance",
    "fisher_overlap": "importance",
    "fisher_overlap_by_layer": "importance",
    "perturbed": "perturbation",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the command line's help needs no torch."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
