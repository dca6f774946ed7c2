"""How each parameter's per-sample gradients will be had, found by running the first few samples of a batch.

Two things must be known before a batch's gradients can be told apart by sample: where the samples are in the tensors of
each operation (`Layout`), and that no sample's output depends on another. Shapes that grow from two samples to three
show the dimension (a batch of one is often laid out differently); a backward pass with each sample's cotangent scaled by
a power of two of its own shows that each row's gradient belongs to the sample we think it does. Whatever has no rule, or
fails a check, goes to `alone`: one sample at a time, always right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ewc.importance.batches import Batch
from ewc.importance.graph import LOOKUP, STEPS, Graph, Step
from ewc.importance.rules import BINDERS, Layout, plain_lookup, supported


@dataclass(frozen=True)
class Use:
    """An operation (`node`) that takes a parameter, after `steps`, as its input number `slot`."""

    steps: tuple[Step, ...]
    node: int
    slot: int


@dataclass
class Plan:
    """For one structure of graph: the uses of each parameter with a rule, and the parameters without one."""

    uses: dict[str, list[Use]] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    mixed: bool = False


class _NoRule(Exception):
    """This parameter is used in a way that no rule covers."""


def make_plan(model: nn.Module, batch: Batch, output: Tensor, graph: Graph, parameters: Mapping[str, Tensor]) -> Plan:
    """The plan for batches whose graph looks like `graph`, the graph of `output` for `batch` (two samples or more)."""
    larger = min(batch.size, 3)
    few = [batch.take(0, size).outputs(model) for size in (1, larger - 1, larger)]
    if not all(_same(few[0][0], other[0]) for other in (*few[1:], output)):
        return Plan(mixed=True)
    small, large = Graph(few[1], parameters), Graph(few[2], parameters)
    if not small.key == large.key == graph.key:
        return Plan(alone=list(graph.parameters.values()))
    plan = Plan(layouts=_layouts(few[2], small, large, larger))
    for node, name in large.parameters.items():
        try:
            plan.uses[name] = _climb(small, large, plan.layouts, node, 0, ())
        except _NoRule:
            plan.alone.append(name)
    return plan


def _same(first: Tensor, second: Tensor) -> bool:
    """Equal up to the rounding of another batch size."""
    first, second = first.detach(), second.detach()
    tolerance = torch.finfo(first.dtype).eps ** 0.5 * float(first.abs().max())
    return first.shape == second.shape and bool(((first - second).abs() <= tolerance).all())


def _climb(small: Graph, large: Graph, layouts: dict[int, Layout], node: int, number: int, steps: tuple[Step, ...]) -> list[Use]:
    """Follow a parameter from `node` to the operations that take it: shapes that do not grow with the batch are steps."""
    uses: list[Use] = []
    for made, consumer, slot in large.consumers.get(node, []):
        if made != number:
            continue
        name = large.nodes[consumer].name()
        if small.shape(consumer) == large.shape(consumer):
            after_lookup = any(step.is_lookup(large) for step in steps)
            if name not in STEPS or after_lookup or (name == LOOKUP and not plain_lookup(large.nodes[consumer])):
                raise _NoRule
            for output in range(len(large.nodes[consumer]._input_metadata)):
                uses += _climb(small, large, layouts, consumer, output, (*steps, Step(consumer, output)))
        elif consumer in layouts and supported(large.nodes[consumer], slot, layouts[consumer]):
            uses.append(Use(steps, consumer, slot))
        else:
            raise _NoRule
    return uses


def _layouts(output: Tensor, small: Graph, large: Graph, batch: int) -> dict[int, Layout]:
    """Where the samples are in the result of every operation that has a rule, checked by its gradients.

    `output` has `batch` samples and the graph `large`; `small` is the graph for one sample fewer.
    """
    operations = {name for name, _ in BINDERS}
    dims = {i: _grown(small, large, i, batch) for i, node in enumerate(large.nodes) if node.name() in operations}
    dims = {i: dim for i, dim in dims.items() if dim is not None}
    if not dims:
        return {}
    edges = [GradientEdge(large.nodes[i], 0) for i in dims]
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(output.shape, generator=generator).to(output.device, output.dtype)
    scales = 2.0 ** torch.arange(batch, device=output.device, dtype=output.dtype)
    scaled_cotangent = cotangent * scales.view(-1, *[1] * (output.ndim - 1))
    grads = torch.autograd.grad(output, edges, cotangent, retain_graph=True)
    scaled = torch.autograd.grad(output, edges, scaled_cotangent, retain_graph=True)
    layouts = {}
    for (i, dim), grad, grad_scaled in zip(dims.items(), grads, scaled, strict=True):
        candidates = [Layout(dim, True), Layout(dim, False)][: large.shape(i)[dim] // batch]
        fitting = [layout for layout in candidates if _fits(layout, grad, grad_scaled, scales)]
        if len(fitting) == 1:
            layouts[i] = fitting[0]
    return layouts


def _grown(small: Graph, large: Graph, node: int, batch: int) -> int | None:
    """The only dimension that grows in proportion to the batch."""
    before, after = small.shape(node), large.shape(node)
    if len(before) != len(after):
        return None
    changed = [d for d in range(len(before)) if before[d] != after[d]]
    in_proportion = len(changed) == 1 and before[changed[0]] * batch == after[changed[0]] * (batch - 1)
    return changed[0] if in_proportion else None


def _fits(layout: Layout, grad: Tensor, scaled: Tensor, scales: Tensor) -> bool:
    """Whether each sample's gradient, where `layout` says it is, was scaled by that sample's scale."""
    before, after = layout.by_sample(grad, len(scales)), layout.by_sample(scaled, len(scales))
    expected = before * scales.view(-1, *[1] * (before.ndim - 1)).to(before.dtype)
    return bool((after - expected).abs().max() <= 1e-3 * before.abs().max())
