"""The Fisher information of each layer as a Kronecker product of two small matrices.

A diagonal cannot see that weights matter together. For a weight matrix W with inputs a and
gradients g at its outputs, the gradient of one position is g aᵀ, so that

    F ≈ N⁻¹ Σ g gᵀ ⊗ R⁻¹ Σ a aᵀ = G ⊗ A

with N samples (or labelled positions) and R positions in all (K-FAC, Martens and Grosse 2015, in
the form "expand" where a weight is used at several positions). A layer's bias is the weight of one
more input, which is always 1. It is exact for one position per sample if a and g are independent.

The inputs and output gradients are those of the pass over the autograd graph that the diagonal
takes. Parameters that are no weight matrices of such operations (norms, embeddings, gains) have
their diagonal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ewc.distributed.ranks import ProcessGroup, Ranks
from ewc.distributed.shards import is_sharded
from ewc.fisher.batches import Collate, FisherBatch
from ewc.fisher.diagonal import run_pass
from ewc.fisher.likelihood import Kind, Likelihood, Positions
from ewc.fisher.passes import FisherPass
from ewc.fisher.per_sample.checks import differing
from ewc.fisher.per_sample.graph import Graph
from ewc.fisher.per_sample.plan import Plan, Use, plan_for_one
from ewc.fisher.per_sample.sums import BatchSquares
from ewc.parameters import ParameterSelection, at_least_float32

LARGEST = 5200  # rows of a factor: beyond, its eigenvectors take minutes to find


@dataclass(frozen=True)
class KroneckerFactors:
    """The Fisher G ⊗ A of one weight matrix, and of the bias that belongs to it.

    Args:
        inputs: A, with one row and column per input; the last one is that of the bias, if any. The
            inputs of a convolution are ordered as `weight.flatten(1)`.
        outputs: G, with one row and column per output.
        bias: the name of the bias, if there is one.
        inputs_first: whether the weight is stored as (inputs, outputs), as GPT-2 does.
        positions: how many positions a sample has on average.

    Example:
        >>> import torch, ewc
        >>> ewc.KroneckerFactors(torch.eye(2), torch.eye(3)).trace()
        6.0
    """

    inputs: Tensor
    outputs: Tensor
    bias: str | None = None
    inputs_first: bool = False
    positions: float = 1.0

    def block(self) -> Tensor:
        """Return G ⊗ A, with the entries of the joined matrix (outputs, inputs) in rows.

        It has (outputs · inputs)² elements: for small layers.

        Example:
            >>> import torch, ewc
            >>> ewc.KroneckerFactors(torch.eye(2), torch.eye(3)).block().shape
            torch.Size([6, 6])
        """
        return torch.kron(self.outputs, self.inputs)

    def trace(self) -> float:
        """Return the trace of G ⊗ A, the sum of the diagonal Fisher.

        Example:
            >>> import torch, ewc
            >>> ewc.KroneckerFactors(2 * torch.eye(2), torch.eye(3)).trace()
            12.0
        """
        return float(self.outputs.trace() * self.inputs.trace())


@dataclass(frozen=True)
class KroneckerFisher:
    """The Fisher of a model, layer by layer.

    Attributes:
        factors: those of each weight matrix, by the name of the weight.
        diagonal: the diagonal of all other parameters, by name.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
        >>> ewc.fisher_kronecker(model, [torch.randn(8, 4)])
        KroneckerFisher(factors: ['0.weight + 0.bias'], diagonal: ['1.weight', '1.bias'])
    """

    factors: dict[str, KroneckerFactors] = field(default_factory=dict)
    diagonal: dict[str, Tensor] = field(default_factory=dict)

    def diagonals(self) -> dict[str, Tensor]:
        """Return the diagonal of all parameters by name, diag(G) diag(A)ᵀ where there are factors.

        It has the shapes of the parameters, but for kernels of convolutions, which are flattened.

        Example:
            >>> import torch, ewc
            >>> fisher = ewc.fisher_kronecker(torch.nn.Linear(4, 3), [torch.randn(8, 4)])
            >>> {name: tuple(values.shape) for name, values in sorted(fisher.diagonals().items())}
            {'bias': (3,), 'weight': (3, 4)}
        """
        diagonals = dict(self.diagonal)
        for name, own in self.factors.items():
            both = own.outputs.diagonal().unsqueeze(1) * own.inputs.diagonal()
            if own.bias is not None:
                both, diagonals[own.bias] = both[:, :-1], both[:, -1]
            diagonals[name] = both.t() if own.inputs_first else both
        return diagonals

    def __repr__(self) -> str:
        pairs = ((name, own.bias) for name, own in self.factors.items())
        names = [name if bias is None else f"{name} + {bias}" for name, bias in pairs]
        return f"KroneckerFisher(factors: {names}, diagonal: {list(self.diagonal)})"


def fisher_kronecker(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    kind: Kind = "exact",
    likelihood: Likelihood = "categorical",
    positions: Positions = "mean",
    max_samples: int | None = None,
    parameters: ParameterSelection = None,
    generator: torch.Generator | None = None,
    collate: Collate | None = None,
    process_group: ProcessGroup = None,
) -> KroneckerFisher:
    """Return the Fisher of each layer as two factors, F ≈ G ⊗ A, and the diagonal of the rest.

    Weight matrices of linear layers, attention projections and convolutions (without groups) have
    factors, wherever in the model they are used, and their biases with them. What else there is,
    and matrices with more than 5,200 inputs or outputs, have their diagonal.

    Args:
        model: any module, see `fisher_diagonal` for all arguments.
        batches: the data of the task.
        kind: `"exact"`, `"sampled"` or `"empirical"`.
        likelihood: what the outputs mean.
        positions: the scale for sequences of labels.
        max_samples: stop after this many samples.
        parameters: which parameters, by name.
        generator: the source of random labels for `"sampled"`.
        collate: makes batches if `batches` is a dataset.
        process_group: the ranks that share the model; the factors are means over all samples.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Linear(4, 3)
        >>> fisher = ewc.fisher_kronecker(model, [(torch.randn(8, 4), torch.randint(3, (8,)))])
        >>> fisher
        KroneckerFisher(factors: ['weight + bias'], diagonal: [])
        >>> tuple(fisher.factors["weight"].inputs.shape)  # with one more for the bias
        (5, 5)
    """
    if any(map(is_sharded, model.parameters())):
        raise TypeError(
            "Kronecker factors of a model that fully_shard has sharded are not supported: use "
            "fisher_diagonal (curvature='diagonal'), or DistributedDataParallel"
        )
    fisher, ranks = run_pass(
        KroneckerPass,
        model,
        batches,
        kind=kind,
        likelihood=likelihood,
        positions=positions,
        max_samples=max_samples,
        parameters=parameters,
        generator=generator,
        collate=collate,
        process_group=process_group,
    )
    assert isinstance(fisher, KroneckerPass)  # no parameter is sharded
    fisher.factors.sum_over_ranks(ranks, fisher.parameters)
    layers = fisher.factors.layers
    for name, own in layers.items():
        del fisher.sums.totals[name]
        if own.bias is not None:
            del fisher.sums.totals[own.bias]
    diagonal = fisher.sums.mean(ranks, max_samples, positions)
    samples, counted = ranks.sum(fisher.sums.samples, fisher.sums.positions)
    divisor = counted if positions == "mean" else samples
    return KroneckerFisher(
        {name: own.means(name, samples, divisor) for name, own in layers.items()}, diagonal
    )


@dataclass
class LayerSums:
    """Sums over the positions of one weight matrix: Σ a aᵀ and Σ g gᵀ.

    Attributes:
        shape: that of the weight.
        bias: the name of the bias, if there is one.
        inputs_first: whether the weight is stored as (inputs, outputs).
        kernel: the size of the window of a convolution; 1 for a linear layer.
        inputs: Σ a aᵀ. Those of a convolution are ordered (*window, channels) here.
        outputs: Σ g gᵀ.
        rows: the number of positions.
    """

    shape: torch.Size
    bias: str | None
    inputs_first: bool
    kernel: int
    inputs: Tensor
    outputs: Tensor
    rows: int = 0

    @classmethod
    def zeros(
        cls, parameter: Tensor, bias: str | None, inputs_first: bool, kernel: int
    ) -> "LayerSums":
        """Return empty sums for a weight."""
        shape, dtype = parameter.shape, at_least_float32(parameter.dtype)
        outputs = shape[1] if inputs_first else shape[0]
        inputs = parameter.numel() // outputs + (bias is not None)
        a, g = (torch.zeros(n, n, dtype=dtype, device=parameter.device) for n in (inputs, outputs))
        return cls(shape, bias, inputs_first, kernel, a, g)

    def add_inputs(self, rows: Tensor) -> None:
        """Add the inputs of some positions, one in each row."""
        count = rows.shape[1]
        self.inputs[:count, :count].addmm_(rows.t(), rows)
        if self.bias is not None:
            sums = rows.sum(0)
            self.inputs[count, :count] += sums
            self.inputs[:count, count] += sums
            self.inputs[count, count] += len(rows)
        self.rows += len(rows)

    def add_gradients(self, rows: Tensor) -> None:
        """Add the gradients at the outputs of some positions, for one cotangent."""
        self.outputs.addmm_(rows.t(), rows)

    def means(self, name: str, samples: int, divisor: int) -> KroneckerFactors:
        """Return A and G, given the number of samples and what the Fisher is divided by."""
        if self.kernel > 1:  # (*window, channels) → (channels, *window)
            order = torch.arange(prod(self.shape[1:]), device=self.inputs.device)
            order = order.view(self.kernel, -1).t().reshape(-1)
            if self.bias is not None:
                order = torch.cat([order, order.new_full((1,), len(order))])
            self.inputs = self.inputs[order][:, order]
        inputs = self.inputs / max(self.rows, 1)
        outputs = self.outputs / divisor
        if not bool(inputs.sum().isfinite() & outputs.sum().isfinite()):
            raise ValueError(
                f"the Fisher of {name!r} is not finite: its inputs or gradients overflow or are NaN"
            )
        return KroneckerFactors(
            inputs, outputs, self.bias, self.inputs_first, max(self.rows / samples, 1.0)
        )


class FactorSums:
    """The sums of all weight matrices that have factors. The first batch shows which these are."""

    def __init__(self) -> None:
        self.layers: dict[str, LayerSums] = {}  # by the name of the weight
        self._chosen = False

    def choose(self, graph: Graph, plan: Plan, parameters: Mapping[str, Tensor]) -> None:
        """Choose the weight matrices that get factors, if this is the first batch."""
        if self._chosen:
            return
        self._chosen = True
        layers = {
            name: storage
            for name in plan.ruled
            if (storage := _as_matrix(graph, plan.uses(name), parameters[name].shape))
        }
        biases = _biases(graph, plan, layers, parameters)
        for name, (inputs_first, kernel) in layers.items():
            empty = LayerSums.zeros(parameters[name], biases.get(name), inputs_first, kernel)
            if max(len(empty.inputs), len(empty.outputs)) <= LARGEST:
                self.layers[name] = empty

    def take(self, graph: Graph, plan: Plan, where: str) -> None:
        """Move the chosen weights of a plan, and their biases, from the squares to the factors.

        Raises if one of them is not used as in the first batch.
        """
        for name, own in self.layers.items():
            if name in plan.one_by_one:
                raise ValueError(
                    f"{name!r} has Kronecker factors, but in {where} it is used in another way "
                    "than in the first batch, and no rule gives them: leave it out "
                    f"(parameters='!{name}'), or use curvature='diagonal'"
                )
            uses = plan.uses(name) if name in plan.ruled else []
            if uses and _as_matrix(graph, uses, own.shape) != (own.inputs_first, own.kernel):
                raise ValueError(f"{name!r} is not used in {where} as in the first batch")
            if own.bias is not None:
                added = plan.uses(own.bias) if own.bias in plan.ruled else []
                if own.bias in plan.one_by_one or _added_to(graph, added) != _nodes(uses):
                    raise ValueError(
                        f"{own.bias!r} is the bias of {name!r} in the first batch, but in {where} "
                        "it is used in another way than in the first batch: leave it out "
                        f"(parameters='!{own.bias}'), or use curvature='diagonal'"
                    )
                plan.take(own.bias)
            if uses:
                plan.factored[name] = plan.take(name)

    def sum_over_ranks(self, ranks: Ranks, parameters: Mapping[str, Tensor]) -> None:
        """Add up the sums of all ranks. One that had no batches gets the others' layers."""
        if ranks.size == 1:
            return
        described = {
            name: (tuple(own.shape), own.bias, own.inputs_first, own.kernel)
            for name, own in self.layers.items()
        }
        everyone = [rank for rank in ranks.exchange((self._chosen, described)) if rank[0]]
        for _, other in everyone:
            if other != everyone[0][1]:
                raise ValueError(
                    "expected Kronecker factors of the same weights in all ranks, but the first "
                    f"has {list(everyone[0][1])} and another {list(other)}"
                )
        if not self._chosen and everyone:
            for name, (_, bias, inputs_first, kernel) in everyone[0][1].items():
                self.layers[name] = LayerSums.zeros(parameters[name], bias, inputs_first, kernel)
        for own in self.layers.values():
            ranks.sum_(own.inputs)
            ranks.sum_(own.outputs)
            (own.rows,) = ranks.sum(own.rows)


def _as_matrix(graph: Graph, uses: list[Use], shape: torch.Size) -> tuple[bool, int] | None:
    """Return how a weight is stored, (inputs first, size of the window), if all uses are alike.

    None if it is not the whole weight matrix of linear operations or convolutions.
    """
    kinds = {_of_use(graph, use, shape) for use in uses}
    return kinds.pop() if len(kinds) == 1 else None


def _of_use(graph: Graph, use: Use, shape: torch.Size) -> tuple[bool, int] | None:
    node = graph.nodes[use.node]
    if use.has_lookup or 0 in shape:
        return None
    match node.name():
        case "ConvolutionBackward0" if not use.path:
            if use.slot != 1 or node._saved_transposed or node._saved_groups != 1:
                return None
            return False, prod(shape[2:])
        case "AddmmBackward0" | "MmBackward0":
            if use.slot != (2 if node.name() == "AddmmBackward0" else 1) or len(shape) != 2:
                return None
            seen = use.view(graph, torch.empty(1, *shape, device="meta"))[0]
            if seen.shape == shape and seen.stride() == (shape[1], 1):
                return True, 1
            if seen.shape == shape[::-1] and seen.stride() == (1, shape[1]):
                return False, 1
    return None


def _biases(
    graph: Graph,
    plan: Plan,
    layers: Mapping[str, tuple[bool, int]],
    parameters: Mapping[str, Tensor],
) -> dict[str, str]:
    """Return the bias of each layer that has one: it is added at just those operations."""
    nodes = {name: _nodes(plan.uses(name)) for name in layers}
    biases: dict[str, str] = {}
    for name in plan.ruled:
        if parameters[name].ndim != 1:
            continue
        added_to = _added_to(graph, plan.uses(name))
        for layer, (inputs_first, _) in layers.items():
            outputs = parameters[layer].shape[1 if inputs_first else 0]
            same = added_to == nodes[layer]
            if same and layer not in biases and len(parameters[name]) == outputs:
                biases[layer] = name
    return biases


def _nodes(uses: list[Use]) -> list[int]:
    return sorted(use.node for use in uses)


def _added_to(graph: Graph, uses: list[Use]) -> list[int]:
    """Return the products that a bias is added to the results of; -1 for what is none."""
    return sorted(-1 if (at := _operation_before(graph, use)) is None else at for use in uses)


def _operation_before(graph: Graph, use: Use) -> int | None:
    """Return the operation whose result a bias is added to, None if there is none."""
    node, name = use.node, graph.nodes[use.node].name()
    if use.path:
        return None
    if name == "AddmmBackward0" and use.slot == 0:
        return node
    if name == "ConvolutionBackward0" and use.slot == 2:
        return node
    if name != "AddBackward0" or graph.nodes[node]._saved_alpha != 1:
        return None
    before, _ = graph.edges[node][1 - use.slot]
    while before >= 0 and graph.nodes[before].name() in ("ViewBackward0", "UnsafeViewBackward0"):
        if graph.shape(before)[-1:] != graph.shape(graph.edges[before][0][0])[-1:]:
            return None
        before, _ = graph.edges[before][0]
    # What is added to the result must be added to all of it, and to nothing else.
    is_product = before >= 0 and graph.nodes[before].name() == "MmBackward0"
    return before if is_product and len(graph.consumers.get(before, [])) == 1 else None


class KroneckerPass(FisherPass):
    """A pass that sums factors where it can, and squares elsewhere."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.factors = FactorSums()
        self.parameters = self._run.parameters
        self._agreed: set[tuple[Any, ...]] = set()  # graphs of single samples that were compared

    def _make_sums(self, graph: Graph, plan: Plan, batch: FisherBatch) -> "BatchFactors":
        self.factors.choose(graph, plan, self._run.parameters)
        self.factors.take(graph, plan, batch.where)
        return BatchFactors(self.sums.totals, graph, plan, batch.size, self.factors.layers)

    def _add_alone(self, sample: FisherBatch, output: Tensor) -> None:
        """Add a sample that was run alone: factors by rules, squares by plain autograd."""
        vectors = list(self._cotangents(sample, output))
        graph = self._run.graph(output)
        plan = plan_for_one(graph)
        self._compare(graph, plan, output, vectors[0])
        self.factors.choose(graph, plan, self._run.parameters)
        self.factors.take(graph, plan, sample.where)
        plan.use_no_rule_for(plan.ruled)
        taken = self.factors.layers.keys() | {own.bias for own in self.factors.layers.values()}
        with torch.no_grad():
            factors = BatchFactors(self.sums.totals, graph, plan, 1, self.factors.layers)
            for vector in vectors if plan.factored else ():
                factors.add(factors.backward(output, vector))
            factors.finish()
        rest = {name: total for name, total in self.sums.totals.items() if name not in taken}
        if rest:
            self._add_sample(rest, output, vectors)
        self._count(sample, output)

    def _compare(self, graph: Graph, plan: Plan, output: Tensor, vector: Tensor) -> None:
        """Use no rule for those parameters whose gradients it does not give, because of a hook."""
        if graph.key in self._agreed or not plan.ruled:
            return
        squares = BatchSquares(self.sums.totals, graph, plan, 1)
        expected = next(iter(self._run.sample_gradients(output, plan.ruled, [vector])))
        with torch.no_grad():
            grads = squares.backward(output, vector)
            different = differing(
                lambda name: squares.add_gradient(-expected[name], name, grads), expected, graph
            )
        if not different:
            self._agreed.add(graph.key)
        plan.use_no_rule_for(different)


class BatchFactors(BatchSquares):
    """Adds the inputs and output gradients of one batch to the factors, and squares of the rest."""

    def __init__(
        self,
        totals: dict[str, Tensor],
        graph: Graph,
        plan: Plan,
        size: int,
        layers: Mapping[str, LayerSums],
    ) -> None:
        super().__init__(totals, graph, plan, size)
        self._layers = [
            (layers[name], use.node, self._rule(name, use))
            for name, uses in plan.factored.items()
            for use in uses
        ]

    def add(self, grads: dict[int, Tensor]) -> None:
        for layer, node, rule in self._layers:
            layer.add_gradients(rule.gradient_rows(grads[node]))
        super().add(grads)

    def finish(self) -> None:
        for layer, node, rule in self._layers:
            for rows in rule.input_rows(self.graph.shape(node)):
                layer.add_inputs(rows)
        super().finish()
