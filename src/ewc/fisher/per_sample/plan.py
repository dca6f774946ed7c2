"""How to compute the per-sample gradients of a batch: with rules, or one sample at a time.

A rule needs to know which rows of an operation's tensors belong to which sample. `flow` reads this
from the graph where it is the same for any data. Elsewhere (rows that are picked by an index,
pooled by a matrix, or passed through a user's own function) it is measured for each batch: the
cotangent of each sample is scaled by its own powers of two, which is exact, so that the gradient of
each row shows which sample it belongs to. Parameters without a rule, or whose rows are not where a
rule needs them, are done one sample at a time, which is always right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ewc.fisher.per_sample.binders import OPERATIONS, WeightInput, is_plain_embedding, supported
from ewc.fisher.per_sample.flow import follow_samples
from ewc.fisher.per_sample.graph import (
    EMBEDDING,
    PATH_OPERATIONS,
    Graph,
    PathNode,
    SampleLayout,
    possible_layouts,
)
from ewc.fisher.per_sample.watch import Look
from ewc.parameters import at_least_float32, widened


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
        factored: weight matrices of which Kronecker factors are taken instead of squares.
        one_by_one: parameters that are done one sample at a time.
    """

    layouts: dict[int, SampleLayout] = field(default_factory=dict)
    single_use: dict[str, Use] = field(default_factory=dict)
    multi_use: dict[str, list[Use]] = field(default_factory=dict)
    factored: dict[str, list[Use]] = field(default_factory=dict)
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

    def uses(self, name: str) -> list[Use]:
        """Return the uses of a parameter that has rules."""
        return [self.single_use[name]] if name in self.single_use else self.multi_use[name]

    def take(self, name: str) -> list[Use]:
        """Remove a parameter that has rules, and return its uses; none if it is not used."""
        uses = self.uses(name) if name in self.ruled else []
        self.single_use.pop(name, None)
        self.multi_use.pop(name, None)
        return uses

    @property
    def ruled(self) -> list[str]:
        """The parameters that have rules."""
        return [*self.single_use, *self.multi_use]

    @cached_property
    def nodes(self) -> list[int]:
        """The operations whose output gradients are needed."""
        uses = [
            *self.single_use.values(),
            *(use for uses in self.multi_use.values() for use in uses),
            *(use for uses in self.factored.values() for use in uses),
        ]
        return sorted({use.node for use in uses})


class Probe(NamedTuple):
    """An output of the model, its graph, and the operations that may have looked across samples."""

    output: Tensor
    graph: Graph
    looks: Sequence[Look] = ()


class GraphFindings(NamedTuple):
    """What the first batch with some graph has shown, for later batches with the same graph.

    Operations in neither set have the layout that the graph shows.

    Attributes:
        measured: operations whose layout depends on the data, and is measured for each batch.
        refused: operations with rows that do not belong to a single sample.
        unruled: parameters whose gradients by the rules are not those of autograd.
    """

    measured: frozenset[int]
    refused: frozenset[int]
    unruled: tuple[str, ...] = ()


class Measured(NamedTuple):
    """What backward passes with scaled samples have shown.

    Attributes:
        fitting: for each operation, those layouts that are right.
        plain: for each operation, the gradient at its result without scales.
        scales: the scales of the samples in the last backward pass.
        parameters: the gradients of the parameters in that pass, if asked for.
    """

    fitting: dict[int, list[SampleLayout]]
    plain: dict[int, Tensor]
    scales: Tensor
    parameters: dict[str, Tensor]


class _NoRule(Exception):
    """Raised for a parameter that is used in a way no rule covers."""


def inspect_graph(probe: Probe) -> tuple[GraphFindings, Measured | None]:
    """Check by measuring what `follow_samples` says about a graph.

    Also find out which of the other operations keep samples separate.

    Args:
        probe: the output for some samples.
    """
    if probe.graph.nested:
        return GraphFindings(frozenset(), frozenset()), None
    known = _known(probe)
    candidates = {
        node: [known[node]]
        if node in known
        else possible_layouts(tuple(probe.graph.shape(node)), len(probe.output))
        for node in _operations(probe.graph)
    }
    measured = measure(probe, candidates, with_parameters=True)
    refused = frozenset(node for node in candidates if not measured.fitting.get(node))
    return GraphFindings(frozenset(candidates) - known.keys() - refused, refused), measured


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
    measured = measure(full, unknown) if unknown else None
    layouts |= (
        {node: fits[0] for node, fits in measured.fitting.items() if fits} if measured else {}
    )
    plan = _with_uses(graph, layouts)
    plan.use_no_rule_for([name for name in findings.unruled if name not in plan.one_by_one])
    return plan


def plan_for_one(graph: Graph) -> Plan:
    """Return the plan for the graph of a single sample, to which all rows belong."""
    if graph.nested:
        return Plan(one_by_one=list(graph.parameters.values()))
    shapes = {node: graph.shape(node) for node in _operations(graph)}
    layouts = {node: SampleLayout(0, 1, shape[0]) for node, shape in shapes.items() if shape}
    return _with_uses(graph, layouts)


def _with_uses(graph: Graph, layouts: dict[int, SampleLayout]) -> Plan:
    """Return a plan with the uses of all parameters that have rules."""
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
    layouts = follow_samples(probe.graph, len(probe.output))
    return {node: layouts[node, 0] for node in _operations(probe.graph) if (node, 0) in layouts}


def measure(
    probe: Probe,
    candidates: Mapping[int, list[SampleLayout]],
    *,
    with_parameters: bool = False,
) -> Measured:
    """Return, for each operation, those candidates that are right for this batch.

    By a right layout, the gradient of every row comes from the sample of the row only. A row
    without a gradient fits any layout, and adds nothing to a Fisher.

    Args:
        probe: the output for some samples, two or more.
        candidates: for each operation, the layouts that may be right.
        with_parameters: return the gradients of the parameters too.
    """
    fitting = {node: list(layouts) for node, layouts in candidates.items() if layouts}
    output, graph, _ = probe
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(output.shape, generator=generator).to(output.device, output.dtype)
    nodes = list(fitting)
    plain = graph.backward(output, cotangent, nodes) if nodes else []
    # Small scales, so that the gradient of a parameter shows the share of every sample.
    base = 8 if with_parameters or graph.largest_number < 1e30 else 32
    every = list(_scales(output, base))
    for number, scales in enumerate(every):
        vector = cotangent * scales.view(-1, *[1] * (output.ndim - 1))
        leaves = list(graph.parameters) if with_parameters and number == len(every) - 1 else []
        scaled = graph.backward(output, vector, nodes + leaves) if nodes or leaves else []
        for node, before, after in zip(nodes, plain, scaled, strict=False):
            fitting[node] = [
                layout for layout in fitting[node] if _fits(layout, before, after, scales)
            ]
    names = graph.parameters
    gradients = {
        names[leaf]: grad.to_dense() if grad.is_sparse else grad
        for leaf, grad in zip(leaves, scaled[len(nodes) :], strict=True)
    }
    return Measured(fitting, dict(zip(nodes, plain, strict=True)), scales, gradients)


def _scales(output: Tensor, base: int) -> Iterator[Tensor]:
    """Yield powers of two for the samples, by the digits of the samples' indices.

    No two samples have the same scales throughout. With a smaller base there are more digits, and
    the scales are smaller.
    """
    indices = torch.arange(len(output), device=output.device)
    while bool(indices.any()):
        yield 2.0 ** (indices % base).to(output.dtype)
        indices = indices // base


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
