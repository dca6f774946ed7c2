"""The absolute per-sample gradients of a whole batch, by the rules of the squares."""

from torch import Tensor

from ewc.fisher.autograd.rules import add_sum_of_absolutes
from ewc.fisher.batch_squares import BatchSquares


class BatchAbsolutes(BatchSquares):
    """Adds Σ_n |∂ℓ_n/∂θ| of one batch to the totals, for one cotangent."""

    _add_sum = staticmethod(add_sum_of_absolutes)

    def add(self, grads: dict[int, Tensor]) -> None:
        """Add the absolute gradients, given the gradients at the operations."""
        for node, total, rule in self._single_use:
            rule.add_absolutes(total, grads[node])
        for name in self.plan.multi_use:
            self._add_multi_use(self.totals[name], self.uses[name], grads)

    def finish(self) -> None:
        """Nothing is put off: there is one cotangent."""
