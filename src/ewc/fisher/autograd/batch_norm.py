"""Batch norm with running statistics, whose backward PyTorch 2.9 to 2.15 gets wrong.

With two or more spatial dimensions and a dimension of size one, when the gradient and the input lie
in memory in different orders, `NativeBatchNormBackward0` mistakes one order for the other and
returns values of the right shape that are wrong by 100 %. Written out, y = x̂ ∘ w + b is simple
enough to do without it.
"""

import torch
from torch import Tensor

from ewc.fisher.autograd.graph import Graph, Node

Grads = tuple[Tensor | None, ...]


def mend_batch_norms(graph: Graph) -> None:
    """Let the batch norms that PyTorch may get wrong compute their gradients by hand."""
    for index, node in enumerate(graph.nodes):
        if node.name() != "NativeBatchNormBackward0" or node._saved_training:
            continue
        shape = graph.shape(index)
        if len(shape) > 3 and 1 in shape:
            normed, slope = normalized(node)
            node.register_hook(_Backward(normed.detach(), slope.detach()))


def normalized(node: Node) -> tuple[Tensor, Tensor]:
    """x̂ = (x − μ) / √(σ² + ε), and the slope w / √(σ² + ε) of the output."""
    inputs = node._saved_input
    shape = (1, -1) + (1,) * (inputs.ndim - 2)
    mean = node._saved_running_mean.view(shape)
    scale = (node._saved_running_var + node._saved_eps).rsqrt().view(shape)
    weight = node._saved_weight
    return (inputs - mean) * scale, scale if weight is None else scale * weight.view(shape)


class _Backward:
    """A hook that replaces the gradients of a node. It holds no node: a node that holds itself is
    never freed.
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
