"""The diagonal of the Fisher information of any model, exact for every sample.

    F_i = 1/N Σ_n E_{y ~ p(y|x_n, θ)} [ (∂ log p(y | x_n, θ) / ∂θ_i)² ]

(`sampled` replaces the expectation by one draw, `empirical` by the label in the data.) Squaring a
batch's mean gradient is something else and wrong; here each sample's gradient is squared. A batch
is run once; the graph it leaves tells where each parameter is used (`graph`), rules turn the inputs
and output gradients of those operations into sums of squares (`rules`), and what no rule covers is
done one sample at a time.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ewc.fisher.autograd.batch_norm import mend_batch_norms
from ewc.fisher.autograd.graph import Graph
from ewc.fisher.autograd.mixing import Rounding
from ewc.fisher.autograd.plan import Plan, Probe, Trust, first_look, make_plan
from ewc.fisher.autograd.rules import accumulates_in, widen
from ewc.fisher.batch_joining import Gathering
from ewc.fisher.batch_squares import BatchWork
from ewc.fisher.batches import Batch, read_batches
from ewc.fisher.likelihood import (
    Kind,
    Likelihood,
    Positions,
    check_options,
    cotangents,
    count_positions,
)
from ewc.fisher.preserve import left_as_found
from ewc.parameters import ParameterSelection, select_parameters, unwrap
from ewc.warnings import EWCWarning

# Batches are joined up to so many samples, or elements of all results in a graph (32 MB).
JOINED_SAMPLES = 1024
JOINED_ELEMENTS = 2**23


def fisher_diagonal(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    kind: Kind = "exact",
    likelihood: Likelihood = "categorical",
    positions: Positions = "mean",
    max_samples: int | None = None,
    parameters: ParameterSelection = None,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Mean over samples of the squared gradient of log p(y | x, θ), for every parameter by name.

    Args:
        model: any module; it is run in eval mode and left exactly as it was.
        batches: yields `(inputs, targets)`, `inputs`, or a mapping of keywords (with `labels`);
            samples come first. Several inputs go in a tuple, `((first, second), targets)`.
        kind: `"exact"` is the expectation over the model's own labels, a backward pass a class;
            `"sampled"` draws one label a sample from the model; `"empirical"` takes the labels in
            the data.
        likelihood: `"categorical"` (logits in the last dimension; a label of -100 is ignored),
            `"gaussian"` (unit variance), `"bernoulli"` (logits), or, for `"empirical"`, a callable
            `(outputs, targets) -> log p`, one value per sample. The log-likelihood of a sequence is
            the sum over its positions.
        positions: the scale of outputs with more than two dimensions, such as sequences of tokens.
            `"mean"` divides by the number of positions (those not ignored) instead of the number of
            samples, for losses that are a mean over tokens; `"sum"` by the number of samples, for
            losses that are a sum over the tokens of each sample.
        max_samples: stop after so many samples.
        parameters: names to take, as glob patterns (`"!head.*"` leaves out), or a callable; all
            trainable ones by default.
        generator: where `"sampled"` draws from. Without it the global state is used and not
            advanced.

    Returns:
        A tensor like each parameter, at least float32; zeros where the output ignores it.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Linear(4, 3)
        >>> fisher = ewc.fisher_diagonal(model, [(torch.randn(8, 4), torch.randint(3, (8,)))])
        >>> {name: tuple(values.shape) for name, values in fisher.items()}
        {'weight': (3, 4), 'bias': (3,)}
    """
    check_options(kind, likelihood, positions)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "fisher_diagonal needs gradients and cannot run under torch.inference_mode(); "
            "torch.no_grad() is fine"
        )
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, not {max_samples}")
    model = unwrap(model)
    selected = select_parameters(model, parameters)
    for name, parameter in selected.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(f"{name!r} has no shape yet: run the model once before its Fisher")
        if parameter.is_complex():
            raise TypeError(
                f"the Fisher of a complex parameter is not defined here: leave out {name!r} "
                f"with parameters='!{name}'"
            )
    with left_as_found(model) as randomness:
        fisher = _FisherPass(model, selected, kind, likelihood, generator)
        samples = 0
        for batch in read_batches(batches, model):
            if max_samples is not None and samples + batch.size > max_samples:
                batch = batch.take(0, max_samples - samples)
            with randomness:
                fisher.take(batch)
            samples += batch.size
            if samples == max_samples:
                break
        with randomness:
            fisher.flush()
    return fisher.mean(max_samples, positions)


class _FisherPass:
    """Sums of squared per-sample gradients, batch by batch."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        kind: Kind,
        likelihood: Likelihood,
        generator: torch.Generator | None,
    ) -> None:
        self.model = model
        self.parameters = parameters
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.options: dict[str, Any] = {
            "kind": kind,
            "likelihood": likelihood,
            "generator": generator,
        }
        self.samples = self.positions = 0
        self.totals = {
            name: torch.zeros(p.shape, dtype=accumulates_in(p.dtype), device=p.device)
            for name, p in parameters.items()
        }
        # by the structure of the graph: what was found out (None: samples mix), and the parameters
        # whose gradients by the rules are not those of autograd
        self.trust: dict[tuple[Any, ...], Trust | None] = {}
        self.doubted: dict[tuple[Any, ...], list[str]] = {}
        self.gathering: Gathering | None = None
        self.room = 0  # samples that may run together

    def mean(self, wanted: int | None, positions: Positions) -> dict[str, Tensor]:
        """The sums over the number of positions or samples, checked."""
        if self.samples == 0:
            raise ValueError("batches is empty: the Fisher needs at least one sample")
        if wanted is not None and self.samples < wanted:
            warnings.warn(
                f"batches ended after {self.samples} samples, before max_samples={wanted}",
                EWCWarning,
                stacklevel=3,
            )
        if self.positions == 0:
            raise ValueError("no position counts: every label is -100, or every token is masked")
        count = self.positions if positions == "mean" else self.samples
        for name, total in self.totals.items():
            if not bool(total.div_(count).sum().isfinite()):
                raise ValueError(
                    f"the Fisher of {name!r} is not finite: its gradients overflow or are NaN"
                )
        return self.totals

    def take(self, batch: Batch) -> None:
        """Add a batch, now or together with the next ones."""
        joinable = batch.joinable
        if self.gathering is not None and not (joinable and self.gathering.takes(batch)):
            self.flush()
        if self.gathering is None and (not joinable or 2 * batch.size > self.room):
            self.add(batch)
            return
        if self.gathering is None:
            self.gathering = Gathering(batch, self.room)
        self.gathering.add(batch)

    def flush(self) -> None:
        """Add the batches that wait. An error names a batch, so after one they go one by one."""
        gathering, self.gathering = self.gathering, None
        if gathering is None:
            return
        try:
            self.add(gathering.together())
        except ValueError:
            for batch in gathering.one_by_one():
                self.add(batch)

    def add(self, batch: Batch) -> None:
        """Add a batch's squared gradients."""
        output = self.outputs(batch)
        graph = self.graph(output)
        if not self.room:
            fitting = JOINED_ELEMENTS * batch.size // max(graph.elements, 1)
            self.room = max(1, min(JOINED_SAMPLES, fitting))
        if batch.size == 1:
            self.add_alone(batch, list(self.parameters), list(self.cotangents(batch, output)))
        else:
            plan = self.plan(batch, output, graph)
            if plan is None or not self.add_together(batch, output, graph, plan):
                for n in range(batch.size):
                    sample = batch.take(n, n + 1)
                    vectors = list(self.cotangents(sample, self.outputs(sample)))
                    self.add_alone(sample, list(self.parameters), vectors)
        self.samples += batch.size
        self.positions += count_positions(
            output, batch.targets, batch.mask, self.options["likelihood"]
        )

    def outputs(self, batch: Batch) -> Tensor:
        output = batch.outputs(self.model)
        values = output.detach()
        # the sum is the quick test; a finite output can overflow it
        if not bool(widen(values).sum().isfinite()) and not bool(values.isfinite().all()):
            raise ValueError(
                f"the model's outputs for {batch.where} are NaN or infinite: "
                "check its inputs and the weights"
            )
        if output.grad_fn is None:
            raise ValueError(
                "the model's output does not depend on any trainable parameter: "
                "is its forward under no_grad or detached?"
            )
        return output

    def cotangents(self, batch: Batch, output: Tensor) -> Iterable[Tensor]:
        return cotangents(output, batch.targets, batch.mask, where=batch.where, **self.options)

    def plan(self, batch: Batch, output: Tensor, graph: Graph) -> Plan | None:
        """How to go about the batch; None if its samples mix."""
        full = Probe(output, graph)
        if graph.key not in self.trust:
            self.trust[graph.key] = self.first_look(batch, full)
            mixed = self.trust[graph.key] is None
        else:
            mixed = self.trust[graph.key] is not None and self.mixes(batch, full)
        if mixed:
            self.trust[graph.key] = None
            warnings.warn(
                "the model's output for a sample depends on the other samples of its batch: "
                "the Fisher is taken one sample at a time, as if each came alone",
                EWCWarning,
                stacklevel=5,
            )
        trust = self.trust[graph.key]
        return None if trust is None else make_plan(full, trust)

    def mixes(self, batch: Batch, full: Probe) -> bool:
        """Whether the last sample has another output alone."""
        alone = batch.take(batch.size - 1, batch.size).outputs(self.model)
        rounding = Rounding(full.output, full.graph.rounding)
        return not rounding.explains(alone[0], full.output[-1])

    def first_look(self, batch: Batch, full: Probe) -> Trust | None:
        """What holds for all batches with such a graph, found with a few samples of this one; None
        if samples mix.
        """
        if self.mixes(batch, full):
            return None
        chosen = [0, batch.size // 2]
        if batch.size < 4 or (few := self.output_of_few(batch, chosen)) is None:
            return first_look(full, full)
        rounding = Rounding(full.output, full.graph.rounding)
        if not all(map(rounding.explains, few, full.output[chosen])):
            return None
        return first_look(full, Probe(few, self.graph(few)))

    def output_of_few(self, batch: Batch, samples: list[int]) -> Tensor | None:
        """The output for some samples; None if the model takes no batch of this size."""
        try:
            return batch.pick(samples).outputs(self.model)
        except (RuntimeError, ValueError):
            return None

    def graph(self, output: Tensor) -> Graph:
        graph = Graph(output, self.names)
        mend_batch_norms(graph)
        return graph

    def add_together(self, batch: Batch, output: Tensor, graph: Graph, plan: Plan) -> bool:
        """The fast way: one backward pass per cotangent to the operations that use parameters, then
        their rules. False, with nothing added, if the graph cannot be used any more.
        """
        vectors = iter(self.cotangents(batch, output))
        first = next(vectors)
        with torch.no_grad():
            try:
                work = BatchWork(self.totals, graph, plan, batch.size)
                grads = work.pull_back(output, first.to(output.dtype))
            except RuntimeError as error:
                if "modified by an inplace operation" in str(error):
                    return False  # the checks ran the model again, which changed what is saved
                raise
            if graph.key not in self.doubted:
                self.doubted[graph.key] = self.doubts(batch, work, grads, first)
            work.leave_out([name for name in self.doubted[graph.key] if name in work.uses])
            rest = list(vectors) if plan.alone else vectors
            work.add(grads)
            del grads  # it is as large as all results of the batch
            for vector in rest:
                work.add(work.pull_back(output, vector.to(output.dtype)))
            work.finish()
        del output, graph, work
        if plan.alone:
            for n in range(batch.size):
                one = [vector[n : n + 1] for vector in (first, *rest)]
                self.add_alone(batch.take(n, n + 1), plan.alone, one)
        return True

    def doubts(
        self, batch: Batch, work: BatchWork, grads: dict[int, Tensor], vector: Tensor
    ) -> list[str]:
        """Compare the gradients by the rules, for the sample with the largest cotangent, with those
        of plain autograd: the parameters that differ. A hook between a parameter and its use makes
        another gradient, and no graph shows it.
        """
        n = int(vector.reshape(batch.size, -1).abs().sum(1).argmax())
        names = list(work.uses)
        if not names:
            return []
        with torch.enable_grad():
            plain = next(self.gradients_alone(batch.take(n, n + 1), names, [vector[n : n + 1]]))
        rounding = work.graph.rounding
        sizes = {name: float(grad.abs().max()) for name, grad in plain.items() if grad.numel()}
        noise = 4 * rounding * max(sizes.values(), default=0.0)
        return [
            name
            for name, size in sizes.items()
            if float((work.gradient(name, grads, n) - plain[name]).abs().max())
            > rounding**0.5 * size + noise
        ]

    def gradients_alone(
        self, sample: Batch, names: list[str], vectors: Iterable[Tensor]
    ) -> Iterator[dict[str, Tensor]]:
        """One sample's gradients by plain autograd, for each cotangent."""
        output = sample.outputs(self.model)
        self.graph(output)
        inputs = [self.parameters[name] for name in names]
        for vector in vectors:
            grads = torch.autograd.grad(
                output, inputs, vector.to(output.dtype), retain_graph=True, allow_unused=True
            )
            yield {
                name: torch.zeros_like(self.totals[name])
                if grad is None
                else widen(grad.to_dense() if grad.is_sparse else grad)
                for name, grad in zip(names, grads, strict=True)
            }

    def add_alone(self, sample: Batch, names: list[str], vectors: list[Tensor]) -> None:
        """The general way: one sample at a time."""
        for grads in self.gradients_alone(sample, names, vectors):
            for name, grad in grads.items():
                self.totals[name].addcmul_(grad, grad)
