"""How much each weight matters to a task: the diagonal Fisher information, and its overlaps."""

from ewc.fisher.diagonal import fisher_diagonal
from ewc.fisher.overlap import fisher_overlap, fisher_overlap_by_layer

__all__ = ["fisher_diagonal", "fisher_overlap", "fisher_overlap_by_layer"]
