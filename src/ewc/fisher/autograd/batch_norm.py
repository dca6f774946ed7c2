"""Batch norm with running statistics, whose backward is wrong in PyTorch 2.9 to 2.15.

With two or more dimensions of space, one of them of size one, and with a gradient and an input that
are stored in different memory orders, `NativeBatchNormBackward0` mistakes one order for the other.
It returns values of the right shape that are wrong by 100 %. The gradients of y = x̂ ∘ w + b are
simple enough to be computed without it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ewc.fisher.autograd.graph import Graph, Node

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
