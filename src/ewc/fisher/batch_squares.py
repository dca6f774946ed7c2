"""The squared per-sample gradients of a whole batch, from one backward pass per cotangent and the
rules.
"""

from functools import cached_property

from torch import Tensor

from ewc.fisher.autograd.binders import bind, padding_row
from ewc.fisher.autograd.graph import Graph
from ewc.fisher.autograd.plan import Plan, Use
from ewc.fisher.autograd.rules import Lookup, Rule, add_sum_of_squares, chunks, widen


class BatchWork:
    """The rules of one batch, bound to its graph."""

    def __init__(self, totals: dict[str, Tensor], graph: Graph, plan: Plan, size: int) -> None:
        self.totals, self.graph, self.plan, self.size = totals, graph, plan, size
        self.uses = {
            name: [(use, self.rule(name, use)) for use in uses]
            for name, uses in [*((n, [u]) for n, u in plan.single.items()), *plan.summed.items()]
        }
        self.squared: dict[int, Tensor] = {}

    @cached_property
    def single(self) -> list[tuple[int, Tensor, Rule]]:
        """Parameters whose squares can be taken at the only operation that uses them."""
        found = []
        for name in self.plan.single:
            ((use, rule),) = self.uses[name]
            total = use.seen(self.graph, self.totals[name].unsqueeze(0))[0]
            found.append((use.node, total, rule))
        return found

    def rule(self, name: str, use: Use) -> Rule:
        weight = (
            self.graph.shape(use.steps[-1].node, use.steps[-1].number)
            if use.steps
            else self.totals[name].shape
        )
        return bind(
            self.graph.nodes[use.node], use.slot, self.plan.layouts[use.node], weight, self.size
        )

    def pull_back(self, output: Tensor, vector: Tensor) -> dict[int, Tensor]:
        """The gradient of one cotangent at every operation, by sample."""
        if not self.plan.nodes:
            return {}
        raw = self.graph.pull_back(output, vector, self.plan.nodes)
        layouts = self.plan.layouts
        return {
            node: layouts[node].by_sample(widen(grad), self.size)
            for node, grad in zip(self.plan.nodes, raw, strict=True)
        }

    def gradient(self, name: str, grads: dict[int, Tensor], sample: int) -> Tensor:
        """A parameter's gradient for one sample."""
        buffer = self.totals[name].new_zeros(1, *self.totals[name].shape)
        for use, rule in self.uses[name]:
            self.add_use(buffer, use, rule, grads[use.node], sample, sample + 1)
        return buffer[0]

    def leave_out(self, names: list[str]) -> None:
        """Leave these parameters to be done one sample at a time."""
        self.plan.leave_out(names)
        self.uses = {name: uses for name, uses in self.uses.items() if name not in names}

    def add(self, grads: dict[int, Tensor]) -> None:
        """Square the gradients of one cotangent at each operation."""
        for node in {node for node, _, rule in self.single if rule.separable}:
            # the other factor of a separable square is the same for every cotangent
            grad = grads[node]
            self.squared[node] = (
                self.squared[node].addcmul_(grad, grad) if node in self.squared else grad.square()
            )
        for node, total, rule in self.single:
            if not rule.separable:
                rule.add_squares(total, grads[node])
        for name in self.plan.summed:
            self.add_summed(self.totals[name], self.uses[name], grads)

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
