"""How to compute the per-sample gradients of a batch: with rules, or one sample at a time.

A rule needs to know which rows of an operation's tensors belong to which sample. `flow` reads this
from the graph where it is the same for any data. Elsewhere (rows that are picked by an index,
pooled by a matrix, or passed through a user's own function) it is measured for each batch: the
cotangent of each sample is scaled by its own powers of two, which is exact, so that the gradient of
each row shows which sample it belongs to. Parameters without a rule, or whose rows are not where a
rule needs them, are done one sample at a time, which is always right.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ewc.dtypes import at_least_float32, widened
from ewc.fisher.autograd.binders import OPERATIONS, WeightInput, is_plain_embedding, supported
from ewc.fisher.autograd.flow import follow_samples
from ewc.fisher.autograd.graph import EMBEDDING, PATH_OPERATIONS, Graph, PathNode
from ewc.fisher.autograd.layout import SampleLayout, possible_layouts


@dataclass(frozen=True)
class Use:
    """An operation that takes a parameter as one of its inputs.

    Attributes:
        path: the nodes between the parameter and the operation.
        node: the number of the operation in the graph.
        slot: which of its inputs the parameter is.
    """

    path: tuple[PathNode, ...]
    node: int
    slot: int

    @property
    def has_lookup(self) -> bool:
        """Whether rows of the parameter are looked up on the path."""
        return any(passed.is_lookup for passed in self.path)

    def view(self, graph: Graph, buffer: Tensor) -> Tensor:
        """Return a view of `buffer` as the operation (or the lookup) sees the parameter.

        `buffer` has the shape of the parameter, after a leading dimension for samples.
        """
        for passed in self.path:
            if passed.is_lookup:
                break
            buffer = passed.view(graph, buffer)
        return buffer


@dataclass
class Plan:
    """How the parameters are used in one batch.

    Attributes:
        layouts: where the samples are in each operation that has a rule.
        single_use: parameters with one use, whose squares can be taken at that operation.
        multi_use: parameters with several uses, whose gradients are summed before squaring.
        one_by_one: parameters that are done one sample at a time.
    """

    layouts: dict[int, SampleLayout] = field(default_factory=dict)
    single_use: dict[str, Use] = field(default_factory=dict)
    multi_use: dict[str, list[Use]] = field(default_factory=dict)
    one_by_one: list[str] = field(default_factory=list)

    def add(self, name: str, uses: list[Use]) -> None:
        """Add the uses of a parameter."""
        if len(uses) == 1 and not uses[0].has_lookup:
            self.single_use[name] = uses[0]
        else:
            self.multi_use[name] = uses

    def use_no_rule_for(self, names: list[str]) -> None:
        """Do these parameters one sample at a time instead of with rules."""
        for name in names:
            self.single_use.pop(name, None)
            self.multi_use.pop(name, None)
        self.one_by_one += names

    @cached_property
    def nodes(self) -> list[int]:
        """The operations whose output gradients are needed."""
        uses = [
            *self.single_use.values(),
            *(use for uses in self.multi_use.values() for use in uses),
        ]
        return sorted({use.node for use in uses})


class Probe(NamedTuple):
    """An output of the model and its graph."""

    output: Tensor
    graph: Graph


class GraphFindings(NamedTuple):
    """What the first batch with some graph has shown, for later batches with the same graph.

    Operations in neither set have the layout that the graph shows.

    Attributes:
        measured: operations whose layout depends on the data, and is measured for each batch.
        refused: operations with rows that do not belong to a single sample.
    """

    measured: frozenset[int]
    refused: frozenset[int]


class _NoRule(Exception):
    """Raised for a parameter that is used in a way no rule covers."""


def inspect_graph(full: Probe, few: Probe) -> GraphFindings:
    """Check by measuring what `follow_samples` says about a graph.

    Also find out which of the other operations keep samples separate.

    Args:
        full: the output for a whole batch.
        few: the output for a few of its samples, which is measured if it has the same graph.
    """
    if full.graph.nested:
        return GraphFindings(frozenset(), frozenset())
    probe = few if few.graph.key == full.graph.key else full
    known = _known(probe)
    candidates = {
        node: [known[node]]
        if node in known
        else possible_layouts(tuple(probe.graph.shape(node)), len(probe.output))
        for node in _operations(probe.graph)
    }
    fitting = measure(probe, candidates)
    refused = frozenset(node for node in candidates if not fitting.get(node))
    return GraphFindings(frozenset(candidates) - known.keys() - refused, refused)


def make_plan(full: Probe, findings: GraphFindings) -> Plan:
    """Return the plan for the batch whose output is `full`."""
    graph, batch = full.graph, len(full.output)
    if graph.nested:
        return Plan(one_by_one=list(graph.parameters.values()))
    layouts = {node: at for node, at in _known(full).items() if node not in findings.refused}
    unknown = {
        node: possible_layouts(tuple(graph.shape(node)), batch)
        for node in findings.measured
        if node not in layouts
    }
    layouts |= {node: fits[0] for node, fits in measure(full, unknown).items() if fits}
    plan = Plan(layouts=layouts)
    for node, name in graph.parameters.items():
        try:
            plan.add(name, _uses(graph, layouts, node))
        except _NoRule:
            plan.one_by_one.append(name)
    return plan


def _operations(graph: Graph) -> list[int]:
    """Return the operations that have a rule."""
    return [i for i, node in enumerate(graph.nodes) if node.name() in OPERATIONS]


def _known(probe: Probe) -> dict[int, SampleLayout]:
    """Return the layouts that the graph shows, for operations that have a rule."""
    found = follow_samples(probe.graph, len(probe.output))
    return {node: found[node, 0] for node in _operations(probe.graph) if (node, 0) in found}


def measure(
    probe: Probe, candidates: Mapping[int, list[SampleLayout]]
) -> dict[int, list[SampleLayout]]:
    """Return, for each operation, those candidates that are right for this batch.

    By a right layout, the gradient of every row comes from the sample of the row only. A row
    without a gradient fits any layout, and adds nothing to a Fisher.
    """
    fitting = {node: list(layouts) for node, layouts in candidates.items() if layouts}
    if not fitting:
        return {}
    output, graph = probe
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(output.shape, generator=generator).to(output.device, output.dtype)
    plain = graph.backward(output, cotangent, list(fitting))
    for scales in _scales(output, graph.largest_number):
        vector = cotangent * scales.view(-1, *[1] * (output.ndim - 1))
        scaled = graph.backward(output, vector, list(fitting))
        for node, before, after in zip(fitting, plain, scaled, strict=True):
            fitting[node] = [one for one in fitting[node] if _fits(one, before, after, scales)]
    return fitting


def _scales(output: Tensor, largest_number: float) -> Iterator[Tensor]:
    """Yield powers of two for the samples, by the digits of the samples' numbers.

    No two samples have the same scales throughout. The scales are small where a type that ends at
    `largest_number` would overflow.
    """
    numbers = torch.arange(len(output), device=output.device)
    base = 32 if largest_number > 1e30 else 8
    while bool(numbers.any()):
        yield 2.0 ** (numbers % base).to(output.dtype)
        numbers = numbers // base


def _fits(layout: SampleLayout, plain: Tensor, scaled: Tensor, scales: Tensor) -> bool:
    """Whether the gradients at each sample's place were scaled by that sample's scale.

    Powers of two are exact, so no entry may differ, except where it underflows.
    """
    before, after = layout.by_sample(plain, len(scales)), layout.by_sample(scaled, len(scales))
    limits = torch.finfo(before.dtype)
    before, after = widened(before), widened(after)
    expected = before * scales.view(-1, *[1] * (before.ndim - 1)).to(before.dtype)
    if not bool(after.isfinite().all()):
        return False
    if torch.equal(after, expected):
        return True
    least = limits.smallest_normal * limits.eps * float(scales.max())
    return bool(((after - expected).abs() <= least).all())


def _uses(graph: Graph, layouts: dict[int, SampleLayout], node: int) -> list[Use]:
    """Return the uses of the parameter at `node`; raise `_NoRule` if one of them has no rule."""
    parameter = graph.nodes[node].variable
    uses = list(_find_uses(graph, layouts, node, 0, ()))
    buffer = torch.empty(1, *parameter.shape, device="meta")
    try:
        for use in uses:
            use.view(graph, buffer)
            if at_least_float32(graph.dtype(use.node)) != at_least_float32(parameter.dtype):
                raise _NoRule  # cast between float32 and float64, or to complex
    except RuntimeError as error:  # a copy in another order, which is no view of the parameter
        raise _NoRule from error
    return uses


def _find_uses(
    graph: Graph,
    layouts: dict[int, SampleLayout],
    node: int,
    number: int,
    path: tuple[PathNode, ...],
) -> Iterator[Use]:
    """Follow a parameter from result `number` of `node` to the operations that use it.

    `path` are the nodes passed so far.
    """
    weight = graph.shape(node, number)
    for made, consumer, slot in graph.consumers.get(node, []):
        if made != number:
            continue
        operation = graph.nodes[consumer]
        if consumer in layouts:
            if not supported(WeightInput(operation, slot, layouts[consumer], weight)):
                raise _NoRule
            yield Use(path, consumer, slot)
            continue
        is_lookup = operation.name() == EMBEDDING
        if operation.name() not in PATH_OPERATIONS or any(passed.is_lookup for passed in path):
            raise _NoRule
        if is_lookup and not is_plain_embedding(operation):
            raise _NoRule
        for output in range(len(operation._input_metadata)):
            passed = PathNode(consumer, output, is_lookup)
            yield from _find_uses(graph, layouts, consumer, output, (*path, passed))
