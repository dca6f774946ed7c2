"""The squared per-sample gradients of a whole batch, from one backward pass a cotangent and the
rules.
"""

from torch import Tensor

from ewc.importance.binders import bind, padding_row
from ewc.importance.graph import Graph
from ewc.importance.plan import Plan, Use
from ewc.importance.rules import Lookup, Rule, add_sum_of_squares, chunks, widen


class BatchWork:
    """The rules of one batch, bound to its graph."""

    def __init__(self, totals: dict[str, Tensor], graph: Graph, plan: Plan, size: int) -> None:
        self.totals, self.graph, self.plan, self.size = totals, graph, plan, size
        self.single = [
            (use.node, use.seen(graph, totals[name].unsqueeze(0))[0], self.rule(name, use))
            for name, use in plan.single.items()
        ]
        self.summed = [
            (totals[name], [(use, self.rule(name, use)) for use in uses])
            for name, uses in plan.summed.items()
        ]
        self.squared: dict[int, Tensor] = {}

    def rule(self, name: str, use: Use) -> Rule:
        weight = (
            self.graph.shape(use.steps[-1].node, use.steps[-1].number)
            if use.steps
            else self.totals[name].shape
        )
        return bind(
            self.graph.nodes[use.node], use.slot, self.plan.layouts[use.node], weight, self.size
        )

    def add(self, output: Tensor, vector: Tensor) -> None:
        """Pull one cotangent back to every operation and square it there."""
        if not self.plan.nodes:
            return
        raw = self.graph.pull_back(output, vector, self.plan.nodes)
        layouts = self.plan.layouts
        grads = {
            node: layouts[node].by_sample(widen(grad), self.size)
            for node, grad in zip(self.plan.nodes, raw, strict=True)
        }
        for node in {node for node, _, rule in self.single if rule.separable}:
            # the other factor of a separable square is the same for every cotangent
            grad = grads[node]
            self.squared[node] = (
                self.squared[node].addcmul_(grad, grad) if node in self.squared else grad.square()
            )
        for node, total, rule in self.single:
            if not rule.separable:
                rule.add_squares(total, grads[node])
        for total, uses in self.summed:
            self.add_summed(total, uses, grads)

    def finish(self) -> None:
        for node, total, rule in self.single:
            if rule.separable:
                rule.add_separable(total, self.squared[node])

    def add_summed(
        self, total: Tensor, uses: list[tuple[Use, Rule]], grads: dict[int, Tensor]
    ) -> None:
        """A parameter used more than once: its per-sample gradients are summed over the uses before
        squaring.
        """
        cost = max([total.numel(), *(rule.cost(grads[use.node]) for use, rule in uses)])
        pieces = chunks(self.size, cost)
        whole = total.new_empty(pieces[0][1], *total.shape)
        for start, stop in pieces:
            buffer = whole[: stop - start].zero_()
            for use, rule in uses:
                self.add_use(buffer, use, rule, grads[use.node], start, stop)
            add_sum_of_squares(total, buffer)

    def add_use(
        self, buffer: Tensor, use: Use, rule: Rule, grad: Tensor, start: int, stop: int
    ) -> None:
        for step in use.steps:
            if step.is_lookup:
                node = self.graph.nodes[step.node]
                indices = node._saved_indices.reshape(1, -1).expand(stop - start, -1)
                looked_up = rule.per_sample(grad, start, stop)
                Lookup(indices, buffer.shape[1], padding_row(node)).add_to(
                    buffer, looked_up, 0, stop - start
                )
                return
            buffer = step.view(self.graph, buffer)
        rule.add_to(buffer, grad, start, stop)
