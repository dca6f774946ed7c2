"""The squared per-sample gradients of a whole batch: backward passes, and rules."""

from functools import cached_property

from torch import Tensor

from ewc.fisher.per_sample.binders import WeightInput, bind, padding_row
from ewc.fisher.per_sample.graph import Graph
from ewc.fisher.per_sample.plan import Plan, Use
from ewc.fisher.per_sample.rules import (
    EmbeddingRule,
    Rule,
    SummedRule,
    add_sum_of_squares,
    chunks,
)
from ewc.parameters import widened


class BatchSquares:
    """Adds the squared gradients of one batch to the totals, with rules made from its graph.

    Args:
        totals: the sums of squares by parameter name, which are added to.
        graph: the graph of the batch.
        plan: which parameters have rules, and where.
        size: the number of samples.
    """

    _add_sum = staticmethod(add_sum_of_squares)

    def __init__(self, totals: dict[str, Tensor], graph: Graph, plan: Plan, size: int) -> None:
        self.totals, self.graph, self.plan, self.size = totals, graph, plan, size
        single_use = {name: [use] for name, use in plan.single_use.items()}
        self.uses = {
            name: [(use, self._rule(name, use)) for use in uses]
            for name, uses in {**single_use, **plan.multi_use}.items()
        }
        self._squared: dict[int, Tensor] = {}

    @cached_property
    def _single_use(self) -> list[tuple[int, Tensor, Rule]]:
        """For each parameter with one use: the operation, its total as seen there, and the rule."""
        gradients = []
        for name in self.plan.single_use:
            ((use, rule),) = self.uses[name]
            total = use.view(self.graph, self.totals[name].unsqueeze(0))[0]
            gradients.append((use.node, total, rule))
        return gradients

    def _rule(self, name: str, use: Use) -> Rule:
        shape = (
            self.graph.shape(use.path[-1].node, use.path[-1].number)
            if use.path
            else self.totals[name].shape
        )
        node, layout = self.graph.nodes[use.node], self.plan.layouts[use.node]
        return bind(WeightInput(node, use.slot, layout, shape), self.size)

    def backward(self, output: Tensor, cotangent: Tensor) -> dict[int, Tensor]:
        """Return the gradient at every operation, samples first, for one cotangent."""
        if not self.plan.nodes:
            return {}
        return self.by_sample(
            self.graph.backward(output, cotangent.to(output.dtype), self.plan.nodes)
        )

    def by_sample(self, raw: list[Tensor], scales: Tensor | None = None) -> dict[int, Tensor]:
        """Return the gradients at the operations with the samples first, scaled if wanted."""
        gradients = {
            node: self.plan.layouts[node].by_sample(widened(grad), self.size)
            for node, grad in zip(self.plan.nodes, raw, strict=True)
        }
        if scales is None:
            return gradients
        return {
            node: grad * scales.view(-1, *[1] * (grad.ndim - 1)).to(grad.dtype)
            for node, grad in gradients.items()
        }

    def summed_gradient(self, name: str, grads: dict[int, Tensor]) -> Tensor:
        """Return the sum of a parameter's gradients over all samples."""
        buffer = self.totals[name].new_zeros(1, *self.totals[name].shape)
        for use, rule in self.uses[name]:
            self._add_use(buffer, use, SummedRule(rule), grads[use.node], 0, 1)
        return buffer[0]

    def add(self, grads: dict[int, Tensor]) -> None:
        """Add the squares for one cotangent, given the gradients at the operations."""
        for node in {node for node, _, rule in self._single_use if rule.separable}:
            # the other factor of a separable square is the same for all cotangents: see `finish`
            grad = grads[node]
            self._squared[node] = (
                self._squared[node].addcmul_(grad, grad) if node in self._squared else grad.square()
            )
        for node, total, rule in self._single_use:
            if not rule.separable:
                rule.add_squares(total, grads[node])
        for name in self.plan.multi_use:
            self._add_multi_use(self.totals[name], self.uses[name], grads)

    def finish(self) -> None:
        """Add what was put off until all cotangents are known."""
        for node, total, rule in self._single_use:
            if rule.separable:
                rule.add_separable(total, self._squared[node])

    def _add_multi_use(
        self, total: Tensor, uses: list[tuple[Use, Rule]], grads: dict[int, Tensor]
    ) -> None:
        """Sum the per-sample gradients of a parameter over its uses, then add their squares."""
        cost = max([total.numel(), *(rule.cost(grads[use.node]) for use, rule in uses)])
        pieces = chunks(self.size, cost)
        whole = total.new_empty(pieces[0][1], *total.shape)
        for start, stop in pieces:
            buffer = whole[: stop - start].zero_()
            for use, rule in uses:
                self._add_use(buffer, use, rule, grads[use.node], start, stop)
            self._add_sum(total, buffer)

    def _add_use(
        self, buffer: Tensor, use: Use, rule: Rule, grad: Tensor, start: int, stop: int
    ) -> None:
        """Add the gradients of one use, for the samples `start` to `stop`, to a buffer."""
        for passed in use.path:
            if passed.is_lookup:
                node = self.graph.nodes[passed.node]
                indices = node._saved_indices.reshape(1, -1).expand(stop - start, -1)
                looked_up = rule.per_sample(grad, start, stop)
                lookup = EmbeddingRule(indices, buffer.shape[1], padding_row(node))
                lookup.add_to(buffer, looked_up, 0, stop - start)
                return
            buffer = passed.view(self.graph, buffer)
        rule.add_to(buffer, grad, start, stop)
