"""The per-sample gradient of each operation with respect to its weights, from its input and its
output's gradient.

A `Rule` is bound to one node of the graph of one batch. `per_sample` gives `∂ℓ_n/∂z` for some
samples, and `separable` rules have one term a sample, so that the square is a product of squares,
`Σ_n (g_n a_nᵀ)² = (g²)ᵀ (a²)`, and no per-sample gradient is ever formed. `z` is the weight as the
operation sees it.
"""

from abc import ABC, abstractmethod
from math import prod

import torch
from torch import Tensor

from ewc.fisher.autograd.graph import Node

# elements of a per-sample buffer: 8 MB in float32, so that it stays close to the cores
BUDGET = 2**21
# samples whose inputs are squared at a time, for the same reason
ROWS = 256


def accumulates_in(dtype: torch.dtype) -> torch.dtype:
    """At least float32: squares of small half-precision gradients would vanish."""
    return torch.promote_types(dtype, torch.float32)


def widen(tensor: Tensor) -> Tensor:
    """`tensor` in the type in which its squares are summed."""
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
        """buffer += ∂ℓ_n/∂z for the samples `start` to `stop`: one of several uses of the same
        weight.
        """
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
        for grads, inputs in zip(squared.split(ROWS), self.inputs.split(ROWS), strict=True):
            total.t().addmm_(grads[:, 0].t(), inputs[:, 0].square())

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        # z is mostly a transposed weight: in the weight's own order memory is walked in a row
        for start, stop in chunks(len(grad), self.cost(grad)):
            add_sum_of_squares(
                total.t(), torch.bmm(grad[start:stop].transpose(1, 2), self.inputs[start:stop])
            )


class Scaled(Rule):
    """y = z ∘ factor, broadcast: norms, biases, gains, bare parameters. ∂ℓ/∂z = Σ factor ∘ g over
    broadcast dimensions.
    """

    def __init__(
        self,
        factor: Tensor | None,
        scale: float,
        aligned: tuple[int, ...],
        shape: torch.Size,
        sample: torch.Size,
    ) -> None:
        self.factor = None if factor is None else widen(factor)
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

    def add_separable(self, total: Tensor, squared: Tensor) -> None:
        if self.factor is not None:
            squared = squared * self.factor.square()
        total.add_(squared.sum(0).reshape(self.shape), alpha=self.scale**2)


class Lookup(Rule):
    """Rows of z chosen by index: an embedding. ∂ℓ/∂z_v = Σ g_t over the positions t that chose
    v.
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

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        """Sum over the positions of each (sample, row) pair that occurs, then square: no buffer of
        all rows.
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


class Convolution(Rule):
    """A convolution of any rank: unfold the input into windows, then it is a product at every place
    of the output.

    A transposed convolution is the same with input and output gradient in each other's part.
    """

    def __init__(self, inputs: Tensor, node: Node, weight: torch.Size) -> None:
        self.inputs = widen(inputs)
        self.kernel = weight[2:]
        self.weight = weight
        self.stride, self.padding, self.dilation = (
            node._saved_stride,
            node._saved_padding,
            node._saved_dilation,
        )
        self.groups, self.transposed = node._saved_groups, node._saved_transposed

    def cost(self, grad: Tensor) -> int:
        windowed, places = (grad, self.inputs) if self.transposed else (self.inputs, grad)
        unfolded = (
            windowed.shape[1] * windowed.shape[2] * prod(self.kernel) * prod(places.shape[3:])
        )
        return unfolded + prod(self.weight) * windowed.shape[1]

    def per_sample(self, grad: Tensor, start: int, stop: int) -> Tensor:
        return self.channels_last(grad, start, stop).movedim(-1, 2)

    def add_squares(self, total: Tensor, grad: Tensor) -> None:
        for start, stop in chunks(len(grad), self.cost(grad)):
            add_sum_of_squares(total.movedim(1, -1), self.channels_last(grad, start, stop))

    def channels_last(self, grad: Tensor, start: int, stop: int) -> Tensor:
        """Σ over places of (channels of the one side) × (windows of the other), group by group."""
        inputs, grad = self.inputs[start:stop].flatten(0, 1), grad[start:stop].flatten(0, 1)
        windowed, places = (grad, inputs) if self.transposed else (inputs, grad)
        channels = places.reshape(len(places) * self.groups, -1, prod(places.shape[2:]))
        gradient = torch.bmm(channels, self.windows(windowed, places.shape[2:]))
        gradient = gradient.reshape(stop - start, -1, self.weight[0], *self.kernel, self.weight[1])
        return gradient.squeeze(1) if gradient.shape[1] == 1 else gradient.sum(1)

    def windows(self, tensor: Tensor, places: torch.Size) -> Tensor:
        """(rows × groups, places, kernel × channels of a group) of a tensor (rows, channels,
        *space).

        Channels come last, where the entries of a window are next to each other in memory.
        """
        rank = len(self.kernel)
        padding = [p for pad in reversed(self.padding) for p in (pad, pad)]
        tensor = torch.nn.functional.pad(tensor, padding) if any(padding) else tensor
        tensor = tensor.movedim(1, -1).contiguous()
        for d, (k, stride, dilation) in enumerate(
            zip(self.kernel, self.stride, self.dilation, strict=True)
        ):
            tensor = tensor.unfold(1 + d, dilation * (k - 1) + 1, stride)[..., ::dilation].narrow(
                1 + d, 0, places[d]
            )
        tensor = tensor.unflatten(
            1 + rank, (self.groups, -1)
        )  # (rows, *places, groups, channels, *kernel)
        kernel = range(3 + rank, 3 + 2 * rank)
        tensor = tensor.permute(0, 1 + rank, *range(1, 1 + rank), *kernel, 2 + rank)
        return tensor.reshape(tensor.shape[0] * self.groups, prod(places), -1)
