"""Elastic weight consolidation for PyTorch: learn task after task without forgetting.

- `EWC` is the memory of the tasks learned so far, and its pull on an optimizer.
- `fisher_diagonal` computes how much each weight matters to a task, `fisher_kronecker` how much
  the directions of each layer matter.
- `fisher_overlap` compares two tasks: do they rely on the same weights?
- `importances` has other precisions for a memory: synaptic intelligence, MAS, Adam's moments.
- `read_card` says what a saved memory is of.
- `perturbed` adds noise to the weights, to show how sensitive they are.
- `ForgetMeNot` recognizes which task an observation belongs to.
"""

from ewc import importances as importances
from ewc.diagnostics import EWCWarning
from ewc.fisher import (
    KroneckerFactors,
    KroneckerFisher,
    fisher_diagonal,
    fisher_kronecker,
    fisher_overlap,
    fisher_overlap_by_layer,
)
from ewc.memory import EWC
from ewc.perturbation import perturbed
from ewc.recognition import ForgetMeNot
from ewc.storage import read_card
from ewc.version import __version__ as __version__

__all__ = [
    "EWC",
    "EWCWarning",
    "ForgetMeNot",
    "KroneckerFactors",
    "KroneckerFisher",
    "fisher_diagonal",
    "fisher_kronecker",
    "fisher_overlap",
    "fisher_overlap_by_layer",
    "perturbed",
    "read_card",
]
