"""How each parameter's per-sample gradients will be had, found by running a few samples of a batch.

Two things must be known before a batch's gradients can be told apart by sample: where the samples
are in the tensors of each operation (`Layout`), and that no sample's output depends on another.
Shapes that grow from a few samples to the whole batch show the dimension; backward passes with each
sample's cotangent scaled by powers of two of its own show that each row's gradient belongs to the
sample we think it does. The few samples show it for all batches to come; where they cannot, because
rows go where the data says or have no gradient, each batch has to show it itself. Whatever has no
rule, or fails a check, goes to `alone`: one sample at a time, always right.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

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
    """For one structure of graph: how each parameter is used where there is a rule, and the
    parameters without one.
    """

    single: dict[str, Use] = field(default_factory=dict)
    summed: dict[str, list[Use]] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    mixed: bool = False
    lasting: bool = True  # holds for other batches with such a graph too

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
    if mixes(model, batch, full.output, [0, batch.size - 1]):
        return Plan(mixed=True)
    for chosen in _choices(batch.size):
        fewer = _output_of(model, batch, chosen)
        if not all(map(_same, fewer, full.output[chosen])):
            return Plan(mixed=True)
        few = Probe(fewer, Graph(fewer, parameters))
        if few.graph.key == full.graph.key:
            break
    else:
        return Plan(alone=list(full.graph.parameters.values()))
    layouts, lasting = _layouts(few, full, _sample_dims(few, full))
    plan = Plan(layouts=layouts, lasting=lasting)
    for node, name in full.graph.parameters.items():
        try:
            plan.add(name, _uses(few.graph, full.graph, layouts, node))
        except _NoRule:
            plan.alone.append(name)
    return plan


def mixes(model: nn.Module, batch: Batch, output: Tensor, samples: list[int]) -> bool:
    """Whether some of the samples have another output alone than in their batch."""
    alone = [_output_of(model, batch, [n])[0] for n in samples]
    return not all(map(_same, alone, output[samples]))


def _choices(size: int) -> list[list[int]]:
    """Samples that may stand for the batch, in another order: a few, or all but one where the model
    does something else for a few (without padding among them it may drop the mask).
    """
    backwards = list(range(size))[::-1]
    few = [[backwards[0], size // 2, 0]] if size > 3 else []
    return [*few, backwards[:-1], backwards[1:]]


def _output_of(model: nn.Module, batch: Batch, samples: list[int]) -> Tensor:
    """The output for some samples of a batch, in this order."""
    return batch.pick(samples).outputs(model)


def _same(first: Tensor, second: Tensor) -> bool:
    """Equal up to the rounding of another batch size."""
    first, second = first.detach(), second.detach()
    tolerance = torch.finfo(first.dtype).eps ** 0.5 * float(first.abs().max())
    return first.shape == second.shape and bool(((first - second).abs() <= tolerance).all())


def _uses(small: Graph, large: Graph, layouts: dict[int, Layout], node: int) -> list[Use]:
    """The uses of the parameter at `node`, if all of them have a rule."""
    uses = _climb(small, large, layouts, node, 0, ())
    buffer = torch.empty(1, *large.nodes[node].variable.shape, device="meta")
    try:
        for use in uses:
            use.seen(large, buffer)
    except RuntimeError as error:  # a copy in another order: no view of the parameter shows it
        raise _NoRule from error
    return uses


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


def _layouts(few: Probe, full: Probe, dims: dict[int, int]) -> tuple[dict[int, Layout], bool]:
    """Where the samples are in the result of each operation, given the dimension they are in, and
    whether that holds for other batches too.

    In the full batch a layout that its gradients allow is right, since rows without a gradient add
    nothing; for other batches it has to be the only one, and seen on most samples.
    """
    layouts: dict[int, Layout] = {}
    lasting = not full.graph.follows_data
    if lasting and len(few.output) > 1:
        allowed = _allowed(few, dims)
        layouts = {i: fits[0] for i, (fits, alive) in allowed.items() if len(fits) == 1 and alive}
        dims = {i: dims[i] for i, (fits, _) in allowed.items() if fits and i not in layouts}
    for i, (fits, alive) in _allowed(full, dims).items():
        if fits:
            layouts[i] = fits[0]
            lasting = lasting and len(fits) == 1 and alive
    return layouts, lasting


def _allowed(probe: Probe, dims: dict[int, int]) -> dict[int, tuple[list[Layout], bool]]:
    """For each operation the layouts that its gradients allow, and whether most samples have a
    gradient there.
    """
    output, graph = probe.output, probe.graph
    if not dims:
        return {}
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(output.shape, generator=generator).to(output.device, output.dtype)
    grads = graph.pull_back(output, cotangent, list(dims))
    samples = len(output)
    allowed = {
        i: [Layout(dim, True), Layout(dim, False)][: graph.shape(i)[dim] // samples]
        for i, dim in dims.items()
    }
    for scales in _scales(output):
        scaled_cotangent = cotangent * scales.view(-1, *[1] * (output.ndim - 1))
        scaled = graph.pull_back(output, scaled_cotangent, list(dims))
        for i, before, after in zip(dims, grads, scaled, strict=True):
            allowed[i] = [one for one in allowed[i] if _fits(one, before, after, scales)]
    return {
        i: (fits, bool(fits) and _alive(fits[0].by_sample(grad, samples)))
        for (i, fits), grad in zip(allowed.items(), grads, strict=True)
    }


def _alive(grad: Tensor) -> bool:
    """Whether most samples have a gradient."""
    return bool(grad.flatten(1).any(1).sum() * 2 > len(grad))


def _scales(output: Tensor) -> Iterator[Tensor]:
    """Powers of two for the samples, by the digits of their numbers: no two samples have all the
    same.
    """
    numbers = torch.arange(len(output), device=output.device)
    while bool(numbers.any()):
        yield 2.0 ** (numbers % 8).to(output.dtype)
        numbers = numbers // 8


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
        if len(changed) == 1:
            rest, odd = divmod(before[changed[0]], len(few.output))
            if not odd and rest * len(full.output) == after[changed[0]]:
                dims[i] = changed[0]
    return dims


def _fits(layout: Layout, grad: Tensor, scaled: Tensor, scales: Tensor) -> bool:
    """Whether each sample's gradient, where `layout` says it is, was scaled by that sample's
    scale.
    """
    before, after = layout.by_sample(grad, len(scales)), layout.by_sample(scaled, len(scales))
    expected = before * scales.view(-1, *[1] * (before.ndim - 1)).to(before.dtype)
    return bool((after - expected).abs().max() <= 1e-3 * before.abs().max())
