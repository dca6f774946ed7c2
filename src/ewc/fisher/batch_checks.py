"""Checks that must pass before a batch is computed with rules instead of one sample at a time.

Samples must not influence each other, and the gradients that the rules give must be those of
autograd. Both are checked with a few samples. What holds for a graph is remembered for all batches
with the same graph.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ewc.fisher.autograd.graph import Graph
from ewc.fisher.autograd.mixing import Rounding
from ewc.fisher.autograd.plan import GraphFindings, Plan, Probe, inspect_graph, make_plan
from ewc.fisher.batch_squares import BatchSquares
from ewc.fisher.batches import FisherBatch
from ewc.fisher.model_run import ModelRun
from ewc.warnings import warn

FEW = 8  # samples of which gradients are tested to be linear


class BatchChecks:
    """Makes the plan for each batch, and remembers by graph what was found out.

    `run` runs the model on some of the samples.
    """

    def __init__(self, run: ModelRun) -> None:
        self._run = run
        self._findings: dict[tuple[Any, ...], GraphFindings | None] = {}  # None: samples mix
        self._mismatches: dict[tuple[Any, ...], list[str]] = {}
        self._linear: set[tuple[Any, ...]] = set()

    def plan(self, batch: FisherBatch, output: Tensor, graph: Graph) -> Plan | None:
        """Return the plan for a batch, or None if its samples mix."""
        full = Probe(output, graph)
        if graph.key not in self._findings:
            self._findings[graph.key] = self._inspect(batch, full)
            mixed = self._findings[graph.key] is None
        else:
            mixed = self._findings[graph.key] is not None and self._mixes(batch, full)
        if mixed:
            self.note_mixing(batch, output, graph)
        findings = self._findings[graph.key]
        return None if findings is None else make_plan(full, findings)

    def note_mixing(self, batch: FisherBatch, output: Tensor, graph: Graph) -> None:
        """Remember, and say, that samples mix in batches with this graph."""
        self._findings[graph.key] = None
        warn(self._why_it_mixes(batch, Probe(output, graph)))

    def refuse_nonlinear(self, batch: FisherBatch, output: Tensor, graph: Graph) -> None:
        """Raise if the gradients of the parameters are not linear in the gradient at the output.

        `exact` replaces the expectation over labels by other vectors with the same second moments,
        which is right for linear maps only. A few samples are looked at.
        """
        key = graph.key
        if key in self._linear:
            return
        if batch.size > FEW and (few := self._output_for_some(batch, list(range(FEW)))) is not None:
            output, graph = few, self._run.graph(few)
        names = list(graph.parameters.values())
        # f(v) + f(u) + f(−s (v + u)) / s = 0: s shows thresholds, the minus shows signs.
        size = 2.0**-10 if graph.largest_number > 1e30 else 2.0**-4
        v, u = _random_like(output, 0), _random_like(output, 1)
        vectors = [v, u, -size * (v + u)]
        first, second, both = self._run.sample_gradients(output, names, vectors)
        expected = {name: first[name] + second[name] for name in names}
        if different := _differing(lambda name: both[name] / -size, expected, graph.rounding):
            raise ValueError(
                f"kind='exact' needs gradients that are linear in the gradient at the output, and "
                f"those of {different[0]} are not: a hook or an autograd function of the model's "
                "own clips or rounds them; use kind='sampled' or kind='empirical'"
            )
        self._linear.add(key)

    def mismatches(self, batch: FisherBatch, squares: BatchSquares, output: Tensor) -> list[str]:
        """Return the parameters whose gradients by the rules are not those of autograd.

        A hook between a parameter and its use changes the gradient, and no graph shows it. One
        sample is compared, and the sum over the batch, which has the gradients of all samples.

        Args:
            batch: the samples.
            squares: the rules of this batch.
            output: the model's output for it.
        """
        key = squares.graph.key
        if key not in self._mismatches:
            self._mismatches[key] = self._find_mismatches(batch, squares, output)
        return [name for name in self._mismatches[key] if name in squares.uses]

    def _find_mismatches(
        self, batch: FisherBatch, squares: BatchSquares, output: Tensor
    ) -> list[str]:
        names, rounding = list(squares.uses), squares.graph.rounding
        if not names:
            return []
        cotangent = _random_like(output)
        n = batch.size - 1  # alone, it has the output that it has in the batch: see `_mixes`
        grads = squares.backward(output, cotangent)
        with torch.enable_grad():
            alone = batch.take(n, n + 1).outputs(self._run.model)
            plain = next(self._run.sample_gradients(alone, names, [cotangent[n : n + 1]]))
        different = _differing(lambda name: squares.gradient(name, grads, n), plain, rounding)
        plain = next(self._run.sample_gradients(output, names, [cotangent]))
        different += _differing(lambda name: squares.summed_gradient(name, grads), plain, rounding)
        return list(dict.fromkeys(different))

    def _mixes(self, batch: FisherBatch, full: Probe) -> bool:
        """Whether the output for the last sample changes without the others."""
        alone = batch.take(batch.size - 1, batch.size).outputs(self._run.model)
        rounding = Rounding(full.output, full.graph.rounding)
        return not rounding.explains(alone[0], full.output[-1])

    def _why_it_mixes(self, batch: FisherBatch, full: Probe) -> str:
        """Say what the output for the last sample depends on, besides that sample."""
        once, again = (
            batch.take(batch.size - 1, batch.size).outputs(self._run.model) for _ in range(2)
        )
        if not Rounding(full.output, full.graph.rounding).explains(once[0], again[0]):
            return (
                "the model's output is random in eval mode, so the Fisher is that of the outputs "
                "drawn, one sample at a time: is a dropout always on?"
            )
        return (
            "the model's output for a sample depends on the other samples of its batch: "
            "the Fisher is computed one sample at a time, as if each sample came alone"
        )

    def _inspect(self, batch: FisherBatch, full: Probe) -> GraphFindings | None:
        """Find out what holds for all batches with this graph; None if samples mix."""
        if self._mixes(batch, full):
            return None
        chosen = [0, batch.size // 2]
        if batch.size < 4 or (few := self._output_for_some(batch, chosen)) is None:
            return inspect_graph(full, full)
        rounding = Rounding(full.output, full.graph.rounding)
        if not all(map(rounding.explains, few, full.output[chosen])):
            return None
        return inspect_graph(full, Probe(few, self._run.graph(few)))

    def _output_for_some(self, batch: FisherBatch, samples: list[int]) -> Tensor | None:
        """Return the output for some samples; None if the model takes no batch of this size."""
        try:
            return batch.pick(samples).outputs(self._run.model)
        except Exception:  # of the user's model, which may check its inputs in any way
            return None


def _random_like(output: Tensor, seed: int = 0) -> Tensor:
    """Return a gradient at the output that no parameter's gradient can hide from."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(output.shape, generator=generator).to(output.device, output.dtype)


def _differing(
    found: Callable[[str], Tensor], expected: Mapping[str, Tensor], rounding: float
) -> list[str]:
    """Return the names whose gradients differ by more than roundings."""
    sizes = {name: float(grad.abs().max()) for name, grad in expected.items() if grad.numel()}
    noise = 4 * rounding * max(sizes.values(), default=0.0)
    return [
        name
        for name, size in sizes.items()
        if float((found(name) - expected[name]).abs().max()) > rounding**0.5 * size + noise
    ]
