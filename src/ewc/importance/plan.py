"""How each parameter's per-sample gradients will be had, found by running the first few samples of
a batch.

Two things must be known before a batch's gradients can be told apart by sample: where the samples
are in the tensors of each operation (`Layout`), and that no sample's output depends on another.
Shapes that grow from a few samples to the whole batch show the dimension; a backward pass with each
sample's cotangent scaled by a power of two of its own shows that each row's gradient belongs to the
sample we think it does. Whatever has no rule, or fails a check, goes to `alone`: one sample at a
time, always right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ewc.importance.batches import Batch
from ewc.importance.binders import BINDERS, plain_lookup, supported
from ewc.importance.graph import LOOKUP, STEPS, Graph, Step
from ewc.importance.layout import Layout


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


@dataclass
class Plan:
    """For one structure of graph: how each parameter is used where there is a rule, and the
    parameters without one.
    """

    single: dict[str, Use] = field(default_factory=dict)
    summed: dict[str, list[Use]] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    mixed: bool = False
    views: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, uses: list[Use]) -> None:
        """Note the uses of a parameter; squares can be taken at the operation if there is only
        one.
        """
        if len(uses) == 1 and not uses[0].looked_up:
            self.single[name] = uses[0]
        else:
            self.summed[name] = uses

    @cached_property
    def nodes(self) -> list[int]:
        """The operations whose output gradients are needed."""
        uses = [*self.single.values(), *(use for uses in self.summed.values() for use in uses)]
        return sorted({use.node for use in uses})


class _NoRule(Exception):
    """This parameter is used in a way that no rule covers."""


class Probe(NamedTuple):
    """An output of the model and its graph."""

    output: Tensor
    graph: Graph


def make_plan(model: nn.Module, batch: Batch, full: Probe, parameters: Mapping[int, str]) -> Plan:
    """The plan for batches whose graph looks like that of `full`, the output for `batch` (two
    samples or more).
    """
    alone = batch.take(0, 1).outputs(model)
    fewer = batch.take(0, 3 if batch.size > 3 else batch.size - 1).outputs(model)
    if not _same(alone[0], fewer[0]) or not _same(alone[0], full.output[0]):
        return Plan(mixed=True)
    few = Probe(fewer, Graph(fewer, parameters))
    if few.graph.key != full.graph.key:
        return Plan(alone=list(full.graph.parameters.values()))
    plan = Plan(layouts=_layouts(few if len(fewer) > 1 else full, _sample_dims(few, full)))
    for node, name in full.graph.parameters.items():
        try:
            plan.add(name, _climb(few.graph, full.graph, plan.layouts, node, 0, ()))
        except _NoRule:
            plan.alone.append(name)
    return plan


def _same(first: Tensor, second: Tensor) -> bool:
    """Equal up to the rounding of another batch size."""
    first, second = first.detach(), second.detach()
    tolerance = torch.finfo(first.dtype).eps ** 0.5 * float(first.abs().max())
    return first.shape == second.shape and bool(((first - second).abs() <= tolerance).all())


def _climb(
    small: Graph,
    large: Graph,
    layouts: dict[int, Layout],
    node: int,
    number: int,
    steps: tuple[Step, ...],
) -> list[Use]:
    """Follow a parameter from `node` to the operations that take it: shapes that do not grow with
    the batch are steps.
    """
    uses: list[Use] = []
    for made, consumer, slot in large.consumers.get(node, []):
        if made != number:
            continue
        name = large.nodes[consumer].name()
        if small.shape(consumer) == large.shape(consumer):
            lookup, after_lookup = name == LOOKUP, any(step.is_lookup for step in steps)
            if (
                name not in STEPS
                or after_lookup
                or (lookup and not plain_lookup(large.nodes[consumer]))
            ):
                raise _NoRule
            for output in range(len(large.nodes[consumer]._input_metadata)):
                uses += _climb(
                    small,
                    large,
                    layouts,
                    consumer,
                    output,
                    (*steps, Step(consumer, output, lookup)),
                )
        elif consumer in layouts and supported(large.nodes[consumer], slot, layouts[consumer]):
            uses.append(Use(steps, consumer, slot))
        else:
            raise _NoRule
    return uses


def _layouts(probe: Probe, dims: dict[int, int]) -> dict[int, Layout]:
    """Where the samples are in the result of each operation, given the dimension they are in,
    checked by its gradients.
    """
    if not dims:
        return {}
    output, graph = probe.output, probe.graph
    edges = [GradientEdge(graph.nodes[i], 0) for i in dims]
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(output.shape, generator=generator).to(output.device, output.dtype)
    scales = 2.0 ** torch.arange(len(output), device=output.device, dtype=output.dtype)
    scaled_cotangent = cotangent * scales.view(-1, *[1] * (output.ndim - 1))
    grads = torch.autograd.grad(output, edges, cotangent, retain_graph=True)
    scaled = torch.autograd.grad(output, edges, scaled_cotangent, retain_graph=True)
    layouts = {}
    for (i, dim), grad, grad_scaled in zip(dims.items(), grads, scaled, strict=True):
        candidates = [Layout(dim, True), Layout(dim, False)][: graph.shape(i)[dim] // len(output)]
        fitting = [layout for layout in candidates if _fits(layout, grad, grad_scaled, scales)]
        if len(fitting) == 1:
            layouts[i] = fitting[0]
    return layouts


def _sample_dims(few: Probe, full: Probe) -> dict[int, int]:
    """For each operation that has a rule, the only dimension that grows in proportion to the
    batch.
    """
    operations = {name for name, _ in BINDERS}
    dims = {}
    for i, node in enumerate(full.graph.nodes):
        if node.name() not in operations:
            continue
        before, after = few.graph.shape(i), full.graph.shape(i)
        changed = (
            [d for d in range(len(after)) if before[d] != after[d]]
            if len(before) == len(after)
            else []
        )
        if len(changed) == 1 and before[changed[0]] * len(full.output) == after[changed[0]] * len(
            few.output
        ):
            dims[i] = changed[0]
    return dims


def _fits(layout: Layout, grad: Tensor, scaled: Tensor, scales: Tensor) -> bool:
    """Whether each sample's gradient, where `layout` says it is, was scaled by that sample's
    scale.
    """
    before, after = layout.by_sample(grad, len(scales)), layout.by_sample(scaled, len(scales))
    expected = before * scales.view(-1, *[1] * (before.ndim - 1)).to(before.dtype)
    return bool((after - expected).abs().max() <= 1e-3 * before.abs().max())
