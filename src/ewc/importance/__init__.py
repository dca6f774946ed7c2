"""How much each weight matters to a task: the diagonal Fisher information, and how two of them
overlap.
"""

from ewc.importance.fisher import fisher_diagonal
from ewc.importance.overlap import fisher_overlap, fisher_overlap_by_layer

__all__ = ["fisher_diagonal", "fisher_overlap", "fisher_overlap_by_layer"]
