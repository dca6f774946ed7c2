"""The squared per-sample gradients of a whole batch: backward passes, and rules."""

from functools import cached_property

from torch import Tensor

from ewc.fisher.per_sample.binders import WeightInput, bind, padding_row
from ewc.fisher.per_sample.graph import Graph
from ewc.fisher.per_sample.plan import Plan, Use
from ewc.fisher.per_sample.rules import (
    ROWS,
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
        # By operation, the gradients of the first cotangent, and the squares of all from two on.
        self._first: dict[int, Tensor] = {}
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

    @cached_property
    def _separable(self) -> dict[int, list[tuple[Tensor, Rule]]]:
        """For each operation with separable rules, their totals and these rules."""
        uses: dict[int, list[tuple[Tensor, Rule]]] = {}
        for node, total, rule in self._single_use:
            if rule.separable:
                uses.setdefault(node, []).append((total, rule))
        return uses

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

    def add_gradient(self, total: Tensor, name: str, grads: dict[int, Tensor]) -> Tensor:
        """Return `total` plus a parameter's gradient over all samples; may overwrite `total`."""
        total = total.contiguous()  # for views of it
        for use, rule in self.uses[name]:
            self._add_use(total.unsqueeze(0), use, SummedRule(rule), grads[use.node], 0, 1)
        return total

    def add(self, grads: dict[int, Tensor]) -> None:
        """Add the squares for one cotangent, given the gradients at the operations."""
        for node in self._separable:
            # the other factor of a separable square is the same for all cotangents: see `finish`
            grad = grads[node]
            if node in self._first:
                self._squared[node] = self._first.pop(node).square().addcmul_(grad, grad)
            elif node in self._squared:
                self._squared[node].addcmul_(grad, grad)
            else:
                self._first[node] = grad
        for node, total, rule in self._single_use:
            if not rule.separable:
                rule.add_squares(total, grads[node])
        for name in self.plan.multi_use:
            self._add_multi_use(self.totals[name], self.uses[name], grads)

    def finish(self) -> None:
        """Add what was put off until all cotangents are known."""
        for node, uses in self._separable.items():
            if node in self._squared:
                pieces = self._squared[node].split(ROWS)
            else:  # squared piece by piece, so that they stay in the cache
                pieces = self._first[node].split(ROWS)
            for number, piece in enumerate(pieces):
                squared = piece if node in self._squared else piece.square()
                for total, rule in uses:
                    rule.add_separable(total, squared, number * ROWS)

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
