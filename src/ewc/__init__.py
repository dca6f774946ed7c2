"""Elastic weight consolidation: a task is remembered as a quadratic well around its solution.

The public surface: `EWC` is the memory and its pull on an optimizer, `fisher_diagonal` says how
much each weight matters to a task, `fisher_overlap` how much two tasks rely on the same weights,
and `perturbed` shakes the weights to see what they bear.
"""

from ewc.importance import fisher_diagonal, fisher_overlap, fisher_overlap_by_layer
from ewc.memory import EWC
from ewc.perturbation import perturbed
from ewc.warnings import EWCWarning

__version__ = "0.1.0"

__all__ = [
    "EWC",
    "EWCWarning",
    "fisher_diagonal",
    "fisher_overlap",
    "fisher_overlap_by_layer",
    "perturbed",
]
