"""Elastic weight consolidation: a task is remembered as a quadratic well around its solution.

The public surface: `EWC` is the memory and its pull on an optimizer, `fisher_diagonal` says how
much each weight matters to a task, `fisher_overlap` how much two tasks rely on the same weights,
`perturbed` adds noise to the weights to show how sensitive they are, and `ForgetMeNot` recognizes
which task an observation belongs to.
"""

from ewc.fisher import fisher_diagonal, fisher_overlap, fisher_overlap_by_layer
from ewc.memory import EWC
from ewc.perturbation import perturbed
from ewc.recognition import ForgetMeNot
from ewc.warnings import EWCWarning

__version__ = "0.2.0"

__all__ = [
    "EWC",
    "EWCWarning",
    "ForgetMeNot",
    "fisher_diagonal",
    "fisher_overlap",
    "fisher_overlap_by_layer",
    "perturbed",
]
