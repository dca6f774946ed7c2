"""Checks that must pass before a batch is computed with rules instead of one sample at a time.

Samples must not influence each other, and the gradients that the rules give must be those of
autograd. A few samples of the first batch with some graph are checked, and what holds is remembered
for all batches with the same graph. Where the model looks across samples (a maximum over the batch,
a sort, places in a queue), the output of every sample that this can matter to is compared, in every
batch.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ewc.diagnostics import warn
from ewc.fisher.batches import FisherBatch
from ewc.fisher.model import ModelRun
from ewc.fisher.per_sample.flow import Rounding
from ewc.fisher.per_sample.graph import Graph
from ewc.fisher.per_sample.plan import GraphFindings, Plan, Probe, inspect_graph, make_plan
from ewc.fisher.per_sample.sums import BatchSquares
from ewc.fisher.per_sample.watch import Outline, Watch, are_within, samples_to_compare
from ewc.parameters import widened

FEW = 8  # samples that are checked, of 64 or more; of fewer an eighth, and at least two
RANDOM = (
    "the model's output is random in eval mode, so the Fisher is that of the outputs drawn, one "
    "sample at a time: is a dropout always on?"
)
COMPARED = "to see whether its output depends on the other samples"


class BatchChecks:
    """Makes the plan for each batch, and remembers by graph what was found out.

    `run` runs the model on some of the samples.
    """

    def __init__(self, run: ModelRun) -> None:
        self._run = run
        self._findings: dict[tuple[Any, ...], GraphFindings | None] = {}  # None: samples mix
        self._linear: set[tuple[Any, ...]] = set()
        self._planned: Counter[tuple[Any, ...]] = Counter()  # batches, by graph
        # By graph, the looks of its last batch that was checked, if none of them crosses samples.
        self._within: dict[tuple[Any, ...], list[Outline] | None] = {}

    def plan(self, batch: FisherBatch, full: Probe) -> Plan | None:
        """Return the plan for a batch, or None if its samples mix."""
        key = full.graph.key
        if key in self._findings and self._findings[key] is None:
            return None
        # Where nothing looks across samples, a later batch is like the first.
        number = self._planned[key]
        checked = self._within.get(key) != _outlines(full) or number & (number - 1) == 0
        mixed = checked and self._mixes(batch, full)
        if not mixed and key not in self._findings:
            self._findings[key] = self._inspect(batch, full)
            mixed = self._findings[key] is None
        if mixed:
            self.note_mixing(batch, full)
        findings = self._findings[key]
        if findings is None:
            return None
        self._planned[key] += 1
        return make_plan(full, findings)

    def note_mixing(self, batch: FisherBatch, full: Probe) -> None:
        """Remember, and say, that samples mix in batches with this graph.

        Nobody has to be told who gave batches of one sample: they mix only where they were joined.
        """
        self._findings[full.graph.key] = None
        is_random = self._is_random(batch, full)
        if is_random or not batch.was_single:
            warn(RANDOM if is_random else self._why_it_mixes(batch))

    def refuse_nonlinear(self, batch: FisherBatch, full: Probe) -> None:
        """Raise if the gradients of the parameters are not linear in the gradient at the output.

        `exact` replaces the expectation over labels by other vectors with the same second moments,
        which is right for linear maps only. A few samples are looked at.
        """
        key = full.graph.key
        if key in self._linear:
            return
        few = self._run.some(batch, list(range(FEW))) if batch.size > FEW else None
        output, graph, _ = few or full
        names = list(graph.parameters.values())
        # f(v) + f(u) + f(−s (v + u)) / s = 0: s shows thresholds, the minus shows signs.
        size = 2.0**-10 if graph.largest_number > 1e30 else 2.0**-4
        v, u = _random_like(output, 0), _random_like(output, 1)
        vectors = [v, u, -size * (v + u)]
        first, second, both = self._run.sample_gradients(output, names, vectors)
        expected = {name: first[name] + second[name] for name in names}
        if different := differing(
            lambda name: (both[name] / -size).sub_(expected[name]), expected, graph
        ):
            raise ValueError(
                f"kind='exact' needs gradients that are linear in the gradient at the output, and "
                f"those of {different[0]} are not: a hook or an autograd function of the model's "
                "own clips or rounds them; use kind='sampled' or kind='empirical'"
            )
        self._linear.add(key)

    def _mixes(self, batch: FisherBatch, full: Probe) -> bool:
        """Whether the output for a sample changes without the others.

        The last sample is compared, and every one for which a look across samples matters.
        """
        rounding = Rounding(full.output, full.graph.rounding)
        last, watch = batch.size - 1, Watch()
        alone = self._run.alone(batch, last, COMPARED, watch if full.looks else None)
        if not rounding.explains(alone[0], full.output[last]):
            return True
        self._within[full.graph.key] = (
            _outlines(full) if are_within(full.looks, watch.looks) else None
        )
        return any(
            not rounding.explains(self._run.alone(batch, n, COMPARED)[0].detach(), full.output[n])
            for n in samples_to_compare(full.looks, watch.looks, batch.size)
            if n != last
        )

    def _is_random(self, batch: FisherBatch, full: Probe) -> bool:
        """Whether the last sample has another output each time that it is run."""
        once, again = (self._run.alone(batch, batch.size - 1, COMPARED) for _ in range(2))
        return not Rounding(full.output, full.graph.rounding).explains(once[0], again[0])

    def _why_it_mixes(self, batch: FisherBatch) -> str:
        before = (
            f"; this was found in {batch.where}, and the batches before it were taken together: "
            "if they mix too, use batches of one sample"
            if self._planned
            else ""
        )
        return (
            "the model's output for a sample depends on the other samples of its batch: "
            f"the Fisher is computed one sample at a time, as if each sample came alone{before}"
        )

    def _inspect(self, batch: FisherBatch, full: Probe) -> GraphFindings | None:
        """Find out what holds for all batches with this graph; None if samples mix."""
        number = min(FEW, max(2, batch.size // 8))
        chosen = [n * batch.size // number for n in range(number)]
        few = self._run.some(batch, chosen) if batch.size >= 4 else None
        if few is not None:
            rounding = Rounding(full.output, full.graph.rounding)
            if len(few.output) != number or not all(
                map(rounding.explains, few.output, full.output[chosen])
            ):
                return None
        probe = few if few is not None and few.graph.key == full.graph.key else full
        findings, measured = inspect_graph(probe)
        if measured is None:
            return findings
        plan, size = make_plan(probe, findings), len(probe.output)
        expected = {name: widened(measured.parameters[name]) for name in plan.ruled}
        rules = BatchSquares(expected, probe.graph, plan, size)  # no squares are added
        grads = rules.by_sample([measured.plain[node] for node in plan.nodes], measured.scales)
        with torch.no_grad():
            unruled = differing(
                lambda name: rules.add_gradient(-expected[name], name, grads), expected, probe.graph
            )
        return findings._replace(unruled=tuple(unruled))


def _outlines(probe: Probe) -> list[Outline]:
    return [look.outline for look in probe.looks]


def _random_like(output: Tensor, seed: int = 0) -> Tensor:
    """Return a gradient at the output that no parameter's gradient can hide from."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(output.shape, generator=generator).to(output.device, output.dtype)


def differing(
    difference: Callable[[str], Tensor], expected: Mapping[str, Tensor], graph: Graph
) -> list[str]:
    """Return the names whose gradients differ from those expected by more than roundings.

    Terms that cancel leave their roundings: the gradient of a bias before an instance norm is a sum
    of as many as there are positions, and should be 0.
    """
    sizes = {name: _largest(grad) for name, grad in expected.items() if grad.numel()}
    noise = 4 * graph.rounding * max(sizes.values(), default=0.0)
    terms = {name: max(1.0, graph.largest_result / expected[name].numel()) for name in sizes}
    return [
        name
        for name, size in sizes.items()
        if _largest(difference(name)) > graph.rounding**0.5 * size + terms[name] ** 0.5 * noise
    ]


def _largest(values: Tensor) -> float:
    """Return the largest absolute value; `vector_norm` of PyTorch takes 17 times longer."""
    smallest, largest = values.aminmax()
    return float(torch.maximum(-smallest, largest))
