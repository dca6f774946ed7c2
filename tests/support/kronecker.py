"""The slow, obvious Kronecker factors, and small random Fishers with factors, in float64.

A mode below autograd records what each matrix product and convolution is called with. In a forward
pass these are the inputs a of each weight. In a backward pass, the product that gives the gradient
of a weight, Σ g aᵀ, is called with these inputs and with the output gradients g. Nothing here reads
the graph, and what was recorded is checked: Σ g aᵀ must be autograd's gradient.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ewc.fisher import KroneckerFactors, KroneckerFisher
from support.fisher import WeightedLabels, log_probability

aten = torch.ops.aten


@dataclass
class SlowLayer:
    """Sums of a weight over samples, positions and labels.

    Attributes:
        inputs: Σ a aᵀ, with 1 as the last input.
        outputs: Σ w(y) g gᵀ.
        rows: number of positions.
        complete: whether Σ g aᵀ was the gradient of the weight each time.
        biases: those parameters whose gradient was Σ g each time.
    """

    inputs: Tensor
    outputs: Tensor
    rows: int = 0
    complete: bool = True
    biases: set[str] = field(default_factory=set)


class Recorder(TorchDispatchMode):
    """Records the inputs, and then the output gradients, of products with some weights."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = {w.untyped_storage().data_ptr(): name for name, w in weights.items()}
        self.sizes = {name: w.numel() for name, w in weights.items()}
        self.products: list[tuple[str, Tensor]] = []  # a weight and its inputs, one per product
        self.wanted: set[str] | None = None  # the weights of a backward pass
        self.found: dict[str, list[tuple[Tensor, Tensor]]] = {}  # pairs of a and g

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.wanted is None:
            if func in (aten.mm.default, aten.addmm.default):
                inputs, weight = args[-2:]
                if (name := self._name(weight)) is not None:
                    self.products.append((name, inputs.detach()))
        elif func is aten.mm.default:
            self._take_product(*args)
        elif func is aten.convolution_backward.default and args[-1][1]:
            grad, inputs, weight, _, stride, padding, dilation, transposed, _, groups, _ = args
            name = self._name(weight)
            if name in self.wanted and not transposed and groups == 1:
                a = windows(inputs, weight.shape[2:], grad.shape[2:], stride, padding, dilation)
                g = grad.flatten(2).transpose(1, 2).flatten(0, 1)
                self.found.setdefault(name, []).append((a, g))
        return func(*args, **(kwargs or {}))

    def _name(self, tensor: Tensor) -> str | None:
        """The parameter that a tensor is a view of, all of it."""
        name = self.names.get(tensor.untyped_storage().data_ptr())
        return name if name is not None and self.sizes[name] == tensor.numel() else None

    def _take_product(self, first: Tensor, second: Tensor) -> None:
        """Note gᵀ a, or aᵀ g, if a are the inputs of a weight that is wanted."""
        for name, inputs in self.products:
            if name in (self.wanted or ()):
                if same_view(second, inputs):
                    return self.found.setdefault(name, []).append((inputs, first.t()))
                if same_view(first.t(), inputs):
                    return self.found.setdefault(name, []).append((inputs, second))
        return None

    @contextmanager
    def backward(self, wanted: set[str]) -> Iterator[None]:
        """Record the products of one backward pass."""
        self.wanted, self.found = wanted, {}
        with self:
            yield
        self.wanted = None

    def groups(self, names: list[str]) -> list[set[str]]:
        """Groups of weights in which no two have the same inputs."""
        found: list[tuple[set[str], set[int]]] = []
        for name in names:
            inputs = {x.data_ptr() for other, x in self.products if other == name}
            for group, taken in found:
                if not inputs & taken:
                    group.add(name)
                    taken |= inputs
                    break
            else:
                found.append(({name}, inputs))
        return [group for group, _ in found]


def same_view(a: Tensor, b: Tensor) -> bool:
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return False
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


def windows(
    x: Tensor, kernel: Any, places: Any, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    """What each place of a convolution's output sees, in rows ordered as `weight.flatten(1)`."""
    x = nn.functional.pad(x, [p for pad in reversed(padding) for p in (pad, pad)])
    rows = []
    for n, place in product(range(len(x)), product(*map(range, places))):
        first = [p * s for p, s in zip(place, stride, strict=True)]
        row = []
        for at in product(*map(range, kernel)):
            seen = [f + k * d for f, k, d in zip(first, at, dilation, strict=True)]
            row.append(x[(n, slice(None), *seen)])
        rows.append(torch.stack(row, 1).flatten())
    return torch.stack(rows)


def slow_factors(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    targets: Tensor | None,
    weighted_labels: WeightedLabels,
    likelihood: str = "categorical",
    found: dict[str, SlowLayer] | None = None,
) -> dict[str, SlowLayer]:
    """The sums of all weights that matrix products or convolutions use, one sample at a time.

    Args:
        model: the model, in eval mode.
        inputs: those of all samples.
        targets: the labels in the data.
        weighted_labels: yields the labels of the Fisher and their weights.
        likelihood: what the outputs mean.
        found: sums to add to.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = {name: p for name, p in parameters.items() if p.ndim > 1}
    found = {} if found is None else found
    for n in range(len(inputs[0])):
        recorder = Recorder(weights)
        with recorder:
            output = model(*(x[n : n + 1].clone() for x in inputs))
        target = None if targets is None else targets[n : n + 1]
        for number, (weight, label) in enumerate(weighted_labels(output.detach(), target)):
            value = log_probability(output, likelihood, label)
            grads = gradients(value, parameters)
            for group in recorder.groups(list(weights)):
                with recorder.backward(group):
                    gradients(value, {name: weights[name] for name in sorted(group)})
                for name, pairs in recorder.found.items():
                    add_pairs(found, name, pairs, grads, weight, number == 0)
    return found


def gradients(value: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    every = torch.autograd.grad(
        value, list(parameters.values()), retain_graph=True, allow_unused=True
    )
    return {
        name: grad.to_dense() if grad.is_sparse else grad
        for name, grad in zip(parameters, every, strict=True)
        if grad is not None
    }


def add_pairs(
    found: dict[str, SlowLayer],
    name: str,
    pairs: list[tuple[Tensor, Tensor]],
    grads: dict[str, Tensor],
    weight: float,
    first: bool,
) -> None:
    """Add the inputs and output gradients of one sample for one label."""
    gradient = sum(g.t() @ a.detach() for a, g in pairs)
    expected = grads[name]
    ins, outs = pairs[0][0].shape[1], pairs[0][1].shape[1]
    if name not in found:
        zeros = expected.new_zeros
        found[name] = SlowLayer(zeros(ins + 1, ins + 1), zeros(outs, outs), biases=set(grads))
    layer = found[name]
    candidates = [expected.reshape(outs, ins)] if expected.numel() == outs * ins else []
    if expected.ndim == 2 and expected.shape == (ins, outs):
        candidates.append(expected.t())
    scale = float(expected.abs().max()) + 1e-30
    layer.complete &= any(float((gradient - c).abs().max()) < 1e-9 * scale for c in candidates)
    sums = sum(g.sum(0) for _, g in pairs).detach()
    layer.biases &= {
        other
        for other, grad in grads.items()
        if grad.shape == sums.shape and torch.allclose(grad, sums, rtol=1e-9, atol=1e-12)
    }
    for a, g in pairs:
        if first:
            ones = torch.cat([a, a.new_ones(len(a), 1)], 1)
            layer.inputs += ones.t() @ ones
            layer.rows += len(a)
        layer.outputs += weight * g.t() @ g


def assert_equal_factors(
    actual: KroneckerFisher,
    slow: dict[str, SlowLayer],
    divisor: int,
    tolerance: float = 1e-9,
    *,
    only_outputs: bool = False,
) -> None:
    """Each factor is that of the loops, to a fraction of its largest entry."""
    largest = max([float(s.outputs.abs().max()) for s in slow.values()], default=0.0) / divisor
    for name, own in actual.factors.items():
        assert name in slow, f"{name} has factors, but no products were seen"
        layer = slow[name]
        assert layer.complete, f"{name} has factors, but its gradient is no sum of products"
        inputs, outputs = layer.inputs / max(layer.rows, 1), layer.outputs / divisor
        if own.bias is None:
            inputs = inputs[:-1, :-1]
        else:
            assert own.bias in layer.biases, f"{own.bias} is not the bias of {name}"
        assert own.inputs.shape == inputs.shape, f"{name}: {own.inputs.shape}, not {inputs.shape}"
        for what, one, other, least in (
            ("A", own.inputs, inputs, 1e-12),
            ("G", own.outputs, outputs, 1e-6 * largest),
        ):
            if what == "A" and only_outputs:
                continue
            scale = max(float(other.abs().max()), least)
            error = float((one - other).abs().max()) / scale
            assert error <= tolerance, f"{what} of {name} is off by {error:.1e}"


def counted(targets: Tensor | None, output: Tensor, likelihood: str = "categorical") -> int:
    """How many positions count."""
    if likelihood != "categorical":
        return len(output)
    return output[..., 0].numel() if targets is None else int((targets != -100).sum())


def spd(size: int, generator: torch.Generator | None = None) -> Tensor:
    """A random symmetric matrix with eigenvalues around 1, all above 0."""
    rows = torch.randn(size, 2 * size, generator=generator, dtype=torch.float64)
    return rows @ rows.t() / (2 * size)


def random_fisher(
    model: nn.Module, seed: int, layers: Iterable[str] | None = None
) -> KroneckerFisher:
    """Factors for all linear layers and convolutions with a bias, a diagonal for the rest."""
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    factors = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            weight, bias = (f"{name}.{each}".lstrip(".") for each in ("weight", "bias"))
            if layers is not None and weight not in layers:
                continue
            p = parameters.pop(weight)
            has_bias = parameters.pop(bias, None) is not None
            ins = p[0].numel() + has_bias
            factors[weight] = KroneckerFactors(
                spd(ins, generator), spd(len(p), generator), bias if has_bias else None
            )
    diagonal = {
        name: torch.rand(p.shape, generator=generator, dtype=torch.float64)
        for name, p in parameters.items()
    }
    return KroneckerFisher(factors, diagonal)
