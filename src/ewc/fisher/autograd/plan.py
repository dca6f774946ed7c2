"""How the per-sample gradients of a batch are computed: by a rule, or one sample at a time.

A rule needs to know which rows of an operation's tensors belong to which sample. Where the graph
shows it for any data (`flow`), it is known. Elsewhere (rows picked by an index, pooled by a matrix,
passed through a function of the user's own) it is measured for each batch: the cotangent of each
sample is scaled by powers of two of its own, which is exact, so that each row's gradient shows
whose it is. What has no rule, or whose rows are not where a rule needs them, goes to `alone`: one
sample at a time, always right.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ewc.fisher.autograd.binders import OPERATIONS, plain_lookup, supported
from ewc.fisher.autograd.flow import follow_samples
from ewc.fisher.autograd.graph import LOOKUP, STEPS, Graph, Step
from ewc.fisher.autograd.layout import Layout, possible_layouts
from ewc.fisher.autograd.rules import accumulates_in, widen


@dataclass(frozen=True)
class Use:
    """An operation (`node`) that takes a parameter, after `steps`, as its input number `slot`."""

    steps: tuple[Step, ...]
    node: int
    slot: int

    @property
    def looked_up(self) -> bool:
        """Whether rows were looked up on the way."""
        return any(step.is_lookup for step in self.steps)

    def seen(self, graph: Graph, buffer: Tensor) -> Tensor:
        """`buffer`, like the parameter with a leading dimension, as the operation (or the lookup)
        sees it.
        """
        for step in self.steps:
            if step.is_lookup:
                break
            buffer = step.view(graph, buffer)
        return buffer


@dataclass
class Plan:
    """For one batch: how each parameter is used where there is a rule, and the parameters without
    one.
    """

    layouts: dict[int, Layout] = field(default_factory=dict)
    single: dict[str, Use] = field(default_factory=dict)
    summed: dict[str, list[Use]] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)

    def add(self, name: str, uses: list[Use]) -> None:
        """Note the uses of a parameter; squares can be taken at the operation if there is only
        one.
        """
        if len(uses) == 1 and not uses[0].looked_up:
            self.single[name] = uses[0]
        else:
            self.summed[name] = uses

    def leave_out(self, names: list[str]) -> None:
        """Take parameters from the rules, to be done one sample at a time."""
        for name in names:
            self.single.pop(name, None)
            self.summed.pop(name, None)
        self.alone += names

    @cached_property
    def nodes(self) -> list[int]:
        """The operations whose output gradients are needed."""
        uses = [*self.single.values(), *(use for uses in self.summed.values() for use in uses)]
        return sorted({use.node for use in uses})


class Probe(NamedTuple):
    """An output of the model and its graph."""

    output: Tensor
    graph: Graph


class Trust(NamedTuple):
    """What a first look at a graph has shown, for later batches with such a graph.

    `measured` operations have rows that only the data can assign, `refused` ones have rows that
    belong to no single sample. An operation in neither is trusted where the graph shows its layout.
    """

    measured: frozenset[int]
    refused: frozenset[int]


class _NoRule(Exception):
    """This parameter is used in a way that no rule covers."""


def first_look(full: Probe, few: Probe) -> Trust:
    """Check what `follow_samples` says of a graph by measuring it, on a few samples where their
    graph is the same, and find out which of the other operations keep samples apart.
    """
    if full.graph.nested:
        return Trust(frozenset(), frozenset())
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
    return Trust(frozenset(candidates) - known.keys() - refused, refused)


def make_plan(full: Probe, trust: Trust) -> Plan:
    """The plan for the batch behind `full`."""
    graph, batch = full.graph, len(full.output)
    if graph.nested:
        return Plan(alone=list(graph.parameters.values()))
    layouts = {node: at for node, at in _known(full).items() if node not in trust.refused}
    unknown = {
        node: possible_layouts(tuple(graph.shape(node)), batch)
        for node in trust.measured
        if node not in layouts
    }
    layouts |= {node: fits[0] for node, fits in measure(full, unknown).items() if fits}
    plan = Plan(layouts=layouts)
    for node, name in graph.parameters.items():
        try:
            plan.add(name, _uses(graph, layouts, node))
        except _NoRule:
            plan.alone.append(name)
    return plan


def _operations(graph: Graph) -> list[int]:
    """The operations that have a rule."""
    return [i for i, node in enumerate(graph.nodes) if node.name() in OPERATIONS]


def _known(probe: Probe) -> dict[int, Layout]:
    """The layouts that the graph shows, of the operations that have a rule."""
    found = follow_samples(probe.graph, len(probe.output))
    return {node: found[node, 0] for node in _operations(probe.graph) if (node, 0) in found}


def measure(probe: Probe, candidates: Mapping[int, list[Layout]]) -> dict[int, list[Layout]]:
    """For each operation the layouts, of those given, by which every row's gradient comes from the
    row's sample only.

    A row without a gradient fits anywhere, and adds nothing to a Fisher.
    """
    fitting = {node: list(layouts) for node, layouts in candidates.items() if layouts}
    if not fitting:
        return {}
    output, graph = probe
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(output.shape, generator=generator).to(output.device, output.dtype)
    plain = graph.pull_back(output, cotangent, list(fitting))
    for scales in _scales(output, graph.widest):
        vector = cotangent * scales.view(-1, *[1] * (output.ndim - 1))
        scaled = graph.pull_back(output, vector, list(fitting))
        for node, before, after in zip(fitting, plain, scaled, strict=True):
            fitting[node] = [one for one in fitting[node] if _fits(one, before, after, scales)]
    return fitting


def _scales(output: Tensor, widest: float) -> Iterator[Tensor]:
    """Powers of two for the samples, by the digits of their numbers: no two samples have all the
    same. They are small where a type that ends at `widest` would overflow.
    """
    numbers = torch.arange(len(output), device=output.device)
    base = 32 if widest > 1e30 else 8
    while bool(numbers.any()):
        yield 2.0 ** (numbers % base).to(output.dtype)
        numbers = numbers // base


def _fits(layout: Layout, plain: Tensor, scaled: Tensor, scales: Tensor) -> bool:
    """Whether each sample's gradient, where `layout` says it is, was scaled by that sample's
    scale. Powers of two are exact, so no entry may be off; what underflows is not.
    """
    before, after = layout.by_sample(plain, len(scales)), layout.by_sample(scaled, len(scales))
    limits = torch.finfo(before.dtype)
    before, after = widen(before), widen(after)
    expected = before * scales.view(-1, *[1] * (before.ndim - 1)).to(before.dtype)
    if not bool(after.isfinite().all()):
        return False
    if torch.equal(after, expected):
        return True
    least = limits.smallest_normal * limits.eps * float(scales.max())
    return bool(((after - expected).abs() <= least).all())


def _uses(graph: Graph, layouts: dict[int, Layout], node: int) -> list[Use]:
    """The uses of the parameter at `node`, if all of them have a rule."""
    parameter = graph.nodes[node].variable
    uses = list(_climb(graph, layouts, node, 0, ()))
    buffer = torch.empty(1, *parameter.shape, device="meta")
    try:
        for use in uses:
            use.seen(graph, buffer)
            if accumulates_in(graph.dtype(use.node)) != accumulates_in(parameter.dtype):
                raise _NoRule  # cast between float32 and float64, or to complex
    except RuntimeError as error:  # a copy in another order: no view of the parameter shows it
        raise _NoRule from error
    return uses


def _climb(
    graph: Graph, layouts: dict[int, Layout], node: int, number: int, steps: tuple[Step, ...]
) -> Iterator[Use]:
    """Follow a parameter from `node` to the operations that take it together with the samples."""
    weight = graph.shape(node, number)
    for made, consumer, slot in graph.consumers.get(node, []):
        if made != number:
            continue
        operation = graph.nodes[consumer]
        if consumer in layouts:
            if not supported(operation, slot, layouts[consumer], weight):
                raise _NoRule
            yield Use(steps, consumer, slot)
            continue
        lookup, after_lookup = operation.name() == LOOKUP, any(step.is_lookup for step in steps)
        if (
            operation.name() not in STEPS
            or after_lookup
            or (lookup and not plain_lookup(operation))
        ):
            raise _NoRule
        for output in range(len(operation._input_metadata)):
            step = Step(consumer, output, lookup)
            yield from _climb(graph, layouts, consumer, output, (*steps, step))
