"""The per-sample gradient of each operation with respect to its weight.

A `Rule` knows one use of a weight in one batch: it is made from the operation's input, and gets the
gradient at the operation's output. `z` is the weight as the operation sees it, and `per_sample`
gives `∂ℓ_n/∂z` for some samples n. A rule is *separable* if a sample has only one term. The square
is then a product of squares, `Σ_n (g_n a_nᵀ)² = (g²)ᵀ (a²)`, and no per-sample gradient is ever
formed.

Rules take plain tensors. `binders` reads these from the autograd graph.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ewc.fisher.per_sample.graph import Graph, Node
from ewc.parameters import widened

Grads = tuple[Tensor | None, ...]


class BatchNormCall(NamedTuple):
    """The arguments of a batch norm with running statistics."""

    inputs: Tensor
    mean: Tensor
    variance: Tensor
    eps: float
    weight: Tensor | None


def batch_norm_call(node: Node) -> BatchNormCall:
    """Read the arguments of a batch norm from its node in the graph."""
    return BatchNormCall(
        node._saved_input,
        node._saved_running_mean,
        node._saved_running_var,
        node._saved_eps,
        node._saved_weight,
    )


def normalized(call: BatchNormCall) -> tuple[Tensor, Tensor]:
    """Return x̂ = (x − μ) / √(σ² + ε), and the slope w / √(σ² + ε) of the output."""
    shape = (1, -1) + (1,) * (call.inputs.ndim - 2)
    scale = (call.variance + call.eps).rsqrt().view(shape)
    slope = scale if call.weight is None else scale * call.weight.view(shape)
    return (call.inputs - call.mean.view(shape)) * scale, slope


def correct_batch_norms(graph: Graph) -> None:
    """Replace the backward of those batch norms that PyTorch may get wrong."""
    for index, node in enumerate(graph.nodes):
        if node.name() != "NativeBatchNormBackward0" or node._saved_training:
            continue
        shape = graph.shape(index)
        if len(shape) > 3 and 1 in shape:
            normed, slope = normalized(batch_norm_call(node))
            node.register_hook(_CorrectGradients(normed.detach(), slope.detach()))


class _CorrectGradients:
    """A hook that replaces the gradients of a node.

    It has no reference to the node, because a node that refers to itself is never freed.
    """

    def __init__(self, normed: Tensor, slope: Tensor) -> None:
        self.normed, self.slope = normed, slope

    @torch.no_grad()
    def __call__(self, wrong: Grads, outputs: Grads) -> Grads:
        grad = outputs[0]
        if grad is None:
            return wrong
        others = [dim for dim in range(grad.ndim) if dim != 1]
        right = (grad * self.slope, (grad * self.normed).sum(others), grad.sum(others))
        return tuple(
            None if old is None else new.to(old.dtype)
            for old, new in zip(wrong, right, strict=False)
        ) + tuple(wrong[3:])


# Elements of a per-sample buffer: 8 MB in float32, so that it stays in the cache.
BUDGET = 2**21
# Samples whose inputs are squared at a time, for the same reason.
ROWS = 256


class Rule(ABC):
    """One use of a weight in one batch. All tensors have the samples first."""

    separable = False

    @abstractmethod
    def cost(self, grad: Tensor) -> int:
        """Return how many elements `per_sample` needs for the buffers of one sample."""

    @abstractmethod
    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        """Return ∂ℓ_n/∂z for the samples `start` to `stop`, from the gradients of all samples."""

    def add_to(self, buffer: Tensor, grad: Tensor, start: int, stop: int) -> None:
        """Add ∂ℓ_n/∂z of the samples `start` to `stop` to a buffer.

        The other uses of the same weight are added to the same buffer.
        """
        buffer.add_(self.per_sample(grad, start, stop))

    def over_batch(self, grad: Tensor) -> Tensor:
        """Return Σ_n ∂ℓ_n/∂z, what autograd gives for a whole batch."""
        parts = chunks(len(grad), self.cost(grad))
        sums = [self.per_sample(grad, start, stop).sum(0) for start, stop in parts]
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)

    def add_over_batch(self, total: Tensor, grad: Tensor) -> None:
        """Add Σ_n ∂ℓ_n/∂z to `total`."""
        total.add_(self.over_batch(grad))

    def input_rows(self, output: torch.Size) -> Iterator[Tensor]:
        """Yield the inputs a of all positions, some in each row; for products g aᵀ only.

        Those of a convolution are windows, ordered (*window, channels).

        Args:
            output: the shape of the result of the operation.
        """
        raise TypeError(f"{type(self).__name__} is no sum of products")

    def gradient_rows(self, grad: Tensor) -> Tensor:
        """Return the output gradients g of all positions, in rows in the order of the inputs."""
        raise TypeError(f"{type(self).__name__} is no sum of products")

    def add_separable(self, total: Tensor, squared: Tensor, start: int = 0) -> None:
        """Add Σ_n (∂ℓ_n/∂z)² to `total`; for separable rules only.

        Args:
            total: the sum.
            squared: the squared gradients of some samples.
            start: the first of these samples.
        """
        raise TypeError(f"{type(self).__name__} is not separable")

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        """Add Σ_n (∂ℓ_n/∂z)² to `total`. A separable rule may overwrite `grad`."""
        for start, stop in chunks(len(grad), self.cost(grad)):
            add_sum_of_squares(total, self.per_sample(grad, start, stop))

    def add_absolutes(self, total: Tensor, grad: Tensor) -> None:
        """Add Σ_n |∂ℓ_n/∂z| to `total`."""
        for start, stop in chunks(len(grad), self.cost(grad)):
            add_sum_of_absolutes(total, self.per_sample(grad, start, stop))


def chunks(samples: int, cost: int) -> list[tuple[int, int]]:
    """Split the samples into ranges (start, stop) whose buffers stay within the budget.

    `cost` is the number of elements that one sample needs.
    """
    size = max(1, BUDGET // max(cost, 1))
    return [(start, min(start + size, samples)) for start in range(0, samples, size)]


def add_sum_of_squares(total: Tensor, gradients: Tensor) -> None:
    """Add Σ_n gradients_n² to `total`. This overwrites `gradients`."""
    if len(gradients) == 1:
        total.addcmul_(gradients[0], gradients[0])
    else:
        total.add_(gradients.square_().sum(0))


def add_sum_of_absolutes(total: Tensor, gradients: Tensor) -> None:
    """Add Σ_n |gradients_n| to `total`."""
    total.add_(gradients.abs().sum(0))


class SummedRule(Rule):
    """Another rule, with all samples of the batch taken for one: ∂ℓ/∂z = Σ_n ∂ℓ_n/∂z."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def cost(self, grad: Tensor) -> int:
        return self.rule.cost(grad)

    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        return self.rule.over_batch(grad).unsqueeze(0)

    def add_to(self, buffer: Tensor, grad: Tensor, start: int, stop: int) -> None:
        self.rule.add_over_batch(buffer[0], grad)


class LinearRule(Rule):
    """y = x z, as in a linear layer: ∂ℓ/∂z = Σ_t x_t g_tᵀ over the positions t of the sample.

    Inputs and gradients have shape (samples, positions, features).
    """

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = widened(inputs)
        self.separable = inputs.shape[1] == 1

    def cost(self, grad: Tensor) -> int:
        return self.inputs.shape[-1] * grad.shape[-1]

    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        return torch.bmm(self.inputs[start:stop].transpose(1, 2), grad[start:stop])

    def add_to(self, buffer: Tensor, grad: Tensor, start: int, stop: int) -> None:
        buffer.baddbmm_(self.inputs[start:stop].transpose(1, 2), grad[start:stop])

    def over_batch(self, grad: Tensor) -> Tensor:
        return self.inputs.flatten(0, 1).t() @ grad.flatten(0, 1)

    def add_over_batch(self, total: Tensor, grad: Tensor) -> None:
        # in the weight's own order, see `add_squares`: ten times faster for large ones
        total.t().addmm_(grad.flatten(0, 1).t(), self.inputs.flatten(0, 1))

    def input_rows(self, output: torch.Size) -> Iterator[Tensor]:
        yield self.inputs.flatten(0, 1)

    def gradient_rows(self, grad: Tensor) -> Tensor:
        return grad.flatten(0, 1)

    def add_separable(self, total: Tensor, squared: Tensor, start: int = 0) -> None:
        inputs = self.inputs[start : start + len(squared), 0]
        total.t().addmm_(squared[:, 0].t(), inputs.square())

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        # z is usually a transposed weight: in the weight's own order, memory is read in sequence
        for start, stop in chunks(len(grad), self.cost(grad)):
            add_sum_of_squares(
                total.t(), torch.bmm(grad[start:stop].transpose(1, 2), self.inputs[start:stop])
            )

    def add_absolutes(self, total: Tensor, grad: Tensor) -> None:
        if not self.separable:
            return super().add_absolutes(total, grad)
        for grads, inputs in zip(grad.split(ROWS), self.inputs.split(ROWS), strict=True):
            total.t().addmm_(grads[:, 0].abs().t(), inputs[:, 0].abs())


class BroadcastRule(Rule):
    """y = z ∘ factor, broadcast: norms, biases, gains and bare parameters.

    ∂ℓ/∂z = Σ factor ∘ g over the dimensions that z was broadcast over.

    Args:
        factor: what z is multiplied by, with the samples first; None means 1.
        scale: a number that z is multiplied by too.
        shape: the shape of z.
        aligned: the same, with a 1 for each dimension that z was expanded by, so that it has the
            rank of the output.
        sample: the shape of the output for one sample.
    """

    def __init__(
        self,
        factor: Tensor | None,
        scale: float,
        shape: torch.Size,
        aligned: tuple[int, ...],
        sample: torch.Size,
    ) -> None:
        self.factor = None if factor is None else widened(factor)
        self.scale = scale
        self.shape = shape
        self.summed = [
            1 + d
            for d, (kept, full) in enumerate(zip(aligned, sample, strict=True))
            if kept == 1 and full != 1
        ]
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

    def add_separable(self, total: Tensor, squared: Tensor, start: int = 0) -> None:
        if self.factor is not None:
            # Not times factor²: that of a masking value, such as -1e30, is infinite.
            factor = self.factor[start : start + len(squared)]
            squared = (squared.sqrt() * factor).square_()
        total.add_(squared.sum(0).reshape(self.shape), alpha=self.scale**2)


class EmbeddingRule(Rule):
    """Rows of z chosen by index: ∂ℓ/∂z_v = Σ g_t over the positions t that chose the row v.

    Args:
        indices: the rows chosen, with the samples first.
        rows: number of rows of z.
        padding: the row that gets no gradient; -1 if there is none.
    """

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

    def over_batch(self, grad: Tensor) -> Tensor:
        together = EmbeddingRule(self.indices.reshape(1, -1), self.rows, self.padding)
        return together.per_sample(grad.reshape(1, -1, grad.shape[-1]), 0, 1)[0]

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        """Add Σ_n (∂ℓ_n/∂z)² to `total`, without a buffer of all rows.

        Gradients are summed for each pair (sample, row) that occurs, and then squared.
        """
        width = grad.shape[-1]
        samples = torch.arange(len(grad), device=grad.device).unsqueeze(1)
        pairs, position = (samples * self.rows + self.indices).unique(return_inverse=True)
        sums = grad.new_zeros(len(pairs), width).index_add_(
            0, position.reshape(-1), grad.reshape(-1, width)
        )
        rows = pairs % self.rows
        if self.padding >= 0:
            sums = sums * (rows != self.padding).unsqueeze(-1)
        total.index_add_(0, rows, sums.square_())


class ConvolutionOptions(NamedTuple):
    """How a convolution was called, with one number per dimension of space."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool


class ConvolutionRule(Rule):
    """A convolution of any rank: the input is unfolded into windows, each of which is a product.

    In a transposed convolution the input and the output gradient change places.

    Args:
        inputs: shape (samples, rows, channels, *space); a sample may have several rows.
        weight: the shape of the weight.
        options: how the convolution was called.
    """

    def __init__(self, inputs: Tensor, weight: torch.Size, options: ConvolutionOptions) -> None:
        self.inputs = widened(inputs)
        self.weight = weight
        self.kernel = weight[2:]
        self.options = options

    def cost(self, grad: Tensor) -> int:
        windowed, places = (grad, self.inputs) if self.options.transposed else (self.inputs, grad)
        unfolded = (
            windowed.shape[1] * windowed.shape[2] * prod(self.kernel) * prod(places.shape[3:])
        )
        return unfolded + prod(self.weight) * windowed.shape[1]

    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        return self.channels_last(grad, start, stop).movedim(-1, 2)

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        for start, stop in chunks(len(grad), self.cost(grad)):
            add_sum_of_squares(total.movedim(1, -1), self.channels_last(grad, start, stop))

    def input_rows(self, output: torch.Size) -> Iterator[Tensor]:
        inputs = self.inputs.flatten(0, 1)
        for start, stop in chunks(len(inputs), prod(self.weight[1:]) * prod(output[2:])):
            yield self.windows(inputs[start:stop], output[2:]).flatten(0, 1)

    def gradient_rows(self, grad: Tensor) -> Tensor:
        return grad.flatten(0, 1).flatten(2).transpose(1, 2).flatten(0, 1)

    def channels_last(self, grad: Tensor, start: int, stop: int) -> Tensor:
        """Return ∂ℓ_n/∂z with its input channels last.

        That is, group by group, Σ over places of (channels of one side) × (windows of the other).
        """
        inputs, grad = self.inputs[start:stop].flatten(0, 1), grad[start:stop].flatten(0, 1)
        windowed, places = (grad, inputs) if self.options.transposed else (inputs, grad)
        # (rows × groups, channels of a group, places) × (rows × groups, places, kernel × channels)
        channels = places.reshape(len(places) * self.options.groups, -1, prod(places.shape[2:]))
        gradient = torch.bmm(channels, self.windows(windowed, places.shape[2:]))
        # (samples, rows of a sample, *weight with its input channels last)
        gradient = gradient.reshape(stop - start, -1, self.weight[0], *self.kernel, self.weight[1])
        return gradient.squeeze(1) if gradient.shape[1] == 1 else gradient.sum(1)

    def windows(self, tensor: Tensor, places: torch.Size) -> Tensor:
        """Return the windows of a tensor (rows, channels, *space), one per place of the output.

        The result has shape (rows × groups, places, kernel × channels of a group). Channels come
        last, so that the entries of a window are next to each other in memory.
        """
        rank = len(self.kernel)
        padding = [p for pad in reversed(self.options.padding) for p in (pad, pad)]
        tensor = torch.nn.functional.pad(tensor, padding) if any(padding) else tensor
        tensor = tensor.movedim(1, -1).contiguous()
        for d, (k, stride, dilation) in enumerate(
            zip(self.kernel, self.options.stride, self.options.dilation, strict=True)
        ):
            tensor = tensor.unfold(1 + d, dilation * (k - 1) + 1, stride)[..., ::dilation].narrow(
                1 + d, 0, places[d]
            )
        tensor = tensor.unflatten(
            1 + rank, (self.options.groups, -1)
        )  # (rows, *places, groups, channels, *kernel)
        kernel = range(3 + rank, 3 + 2 * rank)
        tensor = tensor.permute(0, 1 + rank, *range(1, 1 + rank), *kernel, 2 + rank)
        return tensor.reshape(tensor.shape[0] * self.options.groups, prod(places), -1)
