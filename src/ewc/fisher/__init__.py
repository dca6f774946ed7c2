"""How much each weight matters to a task: the Fisher information, and its overlaps."""

from ewc.fisher.diagonal import fisher_diagonal
from ewc.fisher.kronecker import KroneckerFactors, KroneckerFisher, fisher_kronecker
from ewc.fisher.overlap import fisher_overlap, fisher_overlap_by_layer

__all__ = [
    "KroneckerFactors",
    "KroneckerFisher",
    "fisher_diagonal",
    "fisher_kronecker",
    "fisher_overlap",
    "fisher_overlap_by_layer",
]
