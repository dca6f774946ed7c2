"""The per-sample gradient of each operation with respect to its weights, from its input and its output's gradient.

A `Rule` is bound to one node of the graph of one batch. `per_sample` gives `∂ℓ_n/∂z` for some samples, and `separable`
rules have one term a sample, so that the square is a product of squares, `Σ_n (g_n a_nᵀ)² = (g²)ᵀ (a²)`, and no
per-sample gradient is ever formed. `z` is the weight as the operation sees it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ewc.importance.graph import Node

BUDGET = 2**22  # elements of a per-sample buffer: 16 MB in float32, so that it stays close to the cores


@dataclass(frozen=True)
class Layout:
    """Where the samples are in a tensor: along `dim`, outermost of what is folded into it, or innermost."""

    dim: int
    outer: bool

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """`tensor` with the samples moved to a new first dimension; what else was in `dim` stays there."""
        rest = tensor.shape[self.dim] // batch
        if self.outer:
            return tensor.unflatten(self.dim, (batch, rest)).movedim(self.dim, 0)
        return tensor.unflatten(self.dim, (rest, batch)).movedim(self.dim + 1, 0)


def widen(tensor: Tensor) -> Tensor:
    """At least float32: squares of small half-precision gradients would vanish."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class Rule(ABC):
    """One use of a weight in one batch; all tensors have the samples first."""

    separable = False

    @abstractmethod
    def cost(self, grad: Tensor) -> int:
        """Elements of the buffers that one sample takes in `per_sample`."""

    @abstractmethod
    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        """∂ℓ_n/∂z for the samples `start` to `stop`."""

    def add_to(self, buffer: Tensor, grad: Tensor, start: int, stop: int) -> None:
        """buffer += ∂ℓ_n/∂z for the samples `start` to `stop`: one of several uses of the same weight."""
        buffer.add_(self.per_sample(grad, start, stop))

    def add_separable(self, total: Tensor, squared: Tensor) -> None:
        """total += Σ_n (∂ℓ_n/∂z)², from the squared output gradient (separable rules only)."""
        raise TypeError(f"{type(self).__name__} is not separable")

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        """total += Σ_n (∂ℓ_n/∂z)²."""
        for start, stop in chunks(len(grad), self.cost(grad)):
            add_sum_of_squares(total, self.per_sample(grad, start, stop))


def chunks(samples: int, cost: int) -> list[tuple[int, int]]:
    """Cut `samples` into runs whose buffers stay within the budget."""
    size = max(1, BUDGET // max(cost, 1))
    return [(start, min(start + size, samples)) for start in range(0, samples, size)]


def add_sum_of_squares(total: Tensor, gradients: Tensor) -> None:
    """total += Σ_n gradients_n², overwriting `gradients`."""
    if len(gradients) == 1:
        total.addcmul_(gradients[0], gradients[0])
    else:
        total.add_(gradients.square_().sum(0))


class Product(Rule):
    """y = x z: a linear layer. ∂ℓ/∂z = Σ_t x_t g_tᵀ over the positions t of the sample."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = widen(inputs)
        self.separable = inputs.shape[1] == 1

    def cost(self, grad: Tensor) -> int:
        return self.inputs.shape[-1] * grad.shape[-1]

    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        return torch.bmm(self.inputs[start:stop].transpose(1, 2), grad[start:stop])

    def add_to(self, buffer: Tensor, grad: Tensor, start: int, stop: int) -> None:
        buffer.baddbmm_(self.inputs[start:stop].transpose(1, 2), grad[start:stop])

    def add_separable(self, total: Tensor, squared: Tensor) -> None:
        total.addmm_(self.inputs.squeeze(1).square().t(), squared.squeeze(1))

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        if total.stride(0) >= total.stride(1):
            super().add_squares(total, grad)
            return
        # z is a transposed weight: work in the weight's own order, so that memory is walked in a row
        for start, stop in chunks(len(grad), self.cost(grad)):
            add_sum_of_squares(total.t(), torch.bmm(grad[start:stop].transpose(1, 2), self.inputs[start:stop]))


class Scaled(Rule):
    """y = z ∘ factor, broadcast: norms, biases, gains, bare parameters. ∂ℓ/∂z = Σ factor ∘ g over broadcast dimensions."""

    def __init__(self, factor: Tensor | None, scale: float, aligned: tuple[int, ...], shape: torch.Size, sample: torch.Size) -> None:
        self.factor = None if factor is None else widen(factor)
        self.scale = scale
        self.shape = shape
        self.summed = [1 + d for d, (kept, full) in enumerate(zip(aligned, sample, strict=True)) if kept == 1 and full > 1]
        self.separable = not self.summed

    def cost(self, grad: Tensor) -> int:
        return grad[0].numel()

    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        part = grad[start:stop]
        if self.factor is not None:
            part = part * self.factor[start:stop]
        if self.summed:
            part = part.sum(self.summed)
        if self.scale != 1.0:
            part = part * self.scale
        return part.reshape(stop - start, *self.shape)

    def add_separable(self, total: Tensor, squared: Tensor) -> None:
        if self.factor is not None:
            squared = squared * self.factor.square()
        total.add_(squared.sum(0).reshape(self.shape), alpha=self.scale**2)


class Lookup(Rule):
    """Rows of z chosen by index: an embedding. ∂ℓ/∂z_v = Σ g_t over the positions t that chose v."""

    def __init__(self, indices: Tensor, rows: int, padding: int) -> None:
        self.indices = indices.reshape(len(indices), -1)
        self.rows = rows
        self.padding = padding

    def cost(self, grad: Tensor) -> int:
        return self.rows * grad.shape[-1]

    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        gradient = grad.new_zeros(stop - start, self.rows, grad.shape[-1])
        self.add_to(gradient, grad, start, stop)
        return gradient

    def add_to(self, buffer: Tensor, grad: Tensor, start: int, stop: int) -> None:
        indices, width = self.indices[start:stop], grad.shape[-1]
        part = grad[start:stop].reshape(*indices.shape, width)
        if self.padding >= 0:
            part = part * (indices != self.padding).unsqueeze(-1)
        for sample, (chosen, gradient) in enumerate(zip(indices, part, strict=True)):
            buffer[sample].index_add_(0, chosen, gradient)

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        """Sum over the positions of each (sample, row) pair that occurs, then square: no buffer of all rows."""
        width = grad.shape[-1]
        samples = torch.arange(len(grad), device=grad.device).unsqueeze(1)
        pairs, position = (samples * self.rows + self.indices).unique(return_inverse=True)
        sums = grad.new_zeros(len(pairs), width).index_add_(0, position.reshape(-1), grad.reshape(-1, width))
        rows = pairs % self.rows
        if self.padding >= 0:
            sums = sums * (rows != self.padding).unsqueeze(-1)
        total.index_add_(0, rows, sums.square_())


class Convolution(Rule):
    """A convolution of any rank: unfold the input into windows, then it is a product at every place of the output.

    A transposed convolution is the same with input and output gradient in each other's part.
    """

    def __init__(self, inputs: Tensor, node: Node, weight: torch.Size) -> None:
        self.inputs = widen(inputs)
        self.kernel = weight[2:]
        self.weight = weight
        self.stride, self.padding, self.dilation = node._saved_stride, node._saved_padding, node._saved_dilation
        self.groups, self.transposed = node._saved_groups, node._saved_transposed

    def cost(self, grad: Tensor) -> int:
        windowed, places = (grad, self.inputs) if self.transposed else (self.inputs, grad)
        unfolded = windowed.shape[1] * windowed.shape[2] * prod(self.kernel) * prod(places.shape[3:])
        return unfolded + prod(self.weight) * windowed.shape[1]

    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        """Σ over places of (channels of the one side) × (windows of the other), group by group."""
        inputs, grad = self.inputs[start:stop].flatten(0, 1), grad[start:stop].flatten(0, 1)
        windowed, places = (grad, inputs) if self.transposed else (inputs, grad)
        windows = self.windows(windowed, places.shape[2:])
        channels = places.reshape(len(places) * self.groups, -1, prod(places.shape[2:]))
        gradient = torch.bmm(channels, windows.transpose(1, 2))
        gradient = gradient.reshape(stop - start, -1, *self.weight)
        return gradient.squeeze(1) if gradient.shape[1] == 1 else gradient.sum(1)

    def windows(self, tensor: Tensor, places: torch.Size) -> Tensor:
        """(rows × groups, channels of a group × kernel, places) of a tensor (rows, channels, *space)."""
        rank = len(self.kernel)
        padding = [p for pad in reversed(self.padding) for p in (pad, pad)]
        tensor = torch.nn.functional.pad(tensor, padding) if any(padding) else tensor
        for d, (k, stride, dilation) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            tensor = tensor.unfold(2 + d, dilation * (k - 1) + 1, stride)[..., ::dilation].narrow(2 + d, 0, places[d])
        order = [0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)]
        tensor = tensor.permute(order)
        return tensor.reshape(tensor.shape[0] * self.groups, -1, prod(places))


def bind(node: Node, slot: int, layout: Layout, weight: torch.Size, batch: int) -> Rule:
    """The rule for the weight (of shape `weight`) in `slot` of `node`."""
    return BINDERS[node.name(), slot](node, slot, layout, weight, batch)


def _product(node: Node, slot: int, layout: Layout, weight: torch.Size, batch: int) -> Rule:
    inputs = node._saved_mat1 if slot == 2 else node._saved_self
    return Product(layout.by_sample(inputs, batch))


def _convolution(node: Node, slot: int, layout: Layout, weight: torch.Size, batch: int) -> Rule:
    return Convolution(layout.by_sample(node._saved_input, batch), node, weight)


def _lookup(node: Node, slot: int, layout: Layout, weight: torch.Size, batch: int) -> Rule:
    return Lookup(layout.by_sample(node._saved_indices, batch), weight[0], padding_row(node))


def padding_row(node: Node) -> int:
    """The row of an embedding that gets no gradient, or -1."""
    saved: int = node._saved_padding_idx
    return -1 if saved >= 2**63 else saved


def _scaled(factor: Callable[[Node, int], tuple[Tensor | None, float]], channel: bool = False) -> Callable[..., Rule]:
    """A binder for y = z ∘ factor; `channel` aligns z with dimension 1, else with the last ones."""

    def binder(node: Node, slot: int, layout: Layout, weight: torch.Size, batch: int) -> Rule:
        full = node._input_metadata[0].shape
        tail = len(full) - 2 if channel else 0
        aligned = (1,) * (len(full) - len(weight) - tail) + tuple(weight) + (1,) * tail
        values, scale = factor(node, slot)
        sample = list(full)
        sample[layout.dim] //= batch
        if values is not None:
            values = layout.by_sample(values.expand(full), batch)
        return Scaled(values, scale, aligned, weight, torch.Size(sample))

    return binder


def _plain(node: Node, slot: int) -> tuple[None, float]:
    return None, 1.0


def _added(node: Node, slot: int) -> tuple[None, float]:
    return None, float(node._saved_alpha) if slot == 1 else 1.0


def _multiplied(node: Node, slot: int) -> tuple[Tensor, float]:
    return (node._saved_other if slot == 0 else node._saved_self), 1.0


def _layer_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    return (node._saved_input - node._saved_result1) * node._saved_result2, 1.0


def _group_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    inputs, groups = node._saved_input, node._saved_group
    mean, rstd = node._saved_result1.unsqueeze(-1), node._saved_result2.unsqueeze(-1)
    return ((inputs.reshape(len(inputs), groups, -1) - mean) * rstd).reshape(inputs.shape), 1.0


def _batch_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    """In eval mode: the running statistics are constants."""
    inputs = node._saved_input
    shape = (1, -1) + (1,) * (inputs.ndim - 2)
    mean, rstd = node._saved_running_mean, (node._saved_running_var + node._saved_eps).rsqrt()
    return (inputs - mean.view(shape)) * rstd.view(shape), 1.0


BINDERS: dict[tuple[str, int], Callable[[Any, int, Layout, torch.Size, int], Rule]] = {
    ("AddmmBackward0", 0): _scaled(_plain),
    ("AddmmBackward0", 2): _product,
    ("MmBackward0", 1): _product,
    ("ConvolutionBackward0", 1): _convolution,
    ("ConvolutionBackward0", 2): _scaled(_plain, channel=True),
    ("EmbeddingBackward0", 0): _lookup,
    ("NativeLayerNormBackward0", 1): _scaled(_layer_norm),
    ("NativeLayerNormBackward0", 2): _scaled(_plain),
    ("NativeGroupNormBackward0", 1): _scaled(_group_norm, channel=True),
    ("NativeGroupNormBackward0", 2): _scaled(_plain, channel=True),
    ("NativeBatchNormBackward0", 1): _scaled(_batch_norm, channel=True),
    ("NativeBatchNormBackward0", 2): _scaled(_plain, channel=True),
    ("AddBackward0", 0): _scaled(_added),
    ("AddBackward0", 1): _scaled(_added),
    ("MulBackward0", 0): _scaled(_multiplied),
    ("MulBackward0", 1): _scaled(_multiplied),
    ("ExpandBackward0", 0): _scaled(_plain),
}


def plain_lookup(node: Node) -> bool:
    """An embedding whose gradient is a plain sum over positions."""
    return not (node._saved_scale_grad_by_freq or node._saved_sparse)


def supported(node: Node, slot: int, layout: Layout) -> bool:
    """Whether there is a rule for this slot that is exact for how the operation was called."""
    match node.name():
        case "AddmmBackward0":
            return layout.dim == 0 and node._saved_alpha == 1 and node._saved_beta == 1 and slot != 1
        case "MmBackward0":
            return layout.dim == 0 and slot == 1
        case "ConvolutionBackward0" | "NativeGroupNormBackward0":
            return layout.dim == 0 and slot in (1, 2)
        case "NativeBatchNormBackward0":
            return layout.dim == 0 and slot in (1, 2) and not node._saved_training
        case "EmbeddingBackward0":
            return plain_lookup(node)
    return (node.name(), slot) in BINDERS
