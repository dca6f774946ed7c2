"""Which rule belongs to which operation of the autograd graph, and how it is called there.

The keys of `BINDERS` are the names autograd gives to operations, with the number of the input that
is the weight. An operation that is not here is not wrong, only slow: its weights are done one
sample at a time.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ewc.fisher.autograd.batch_norm import normalized
from ewc.fisher.autograd.graph import LOOKUP, Node
from ewc.fisher.autograd.layout import Layout
from ewc.fisher.autograd.rules import (
    Convolution,
    Lookup,
    Product,
    Rule,
    Scaled,
    accumulates_in,
)

Binder = Callable[[Node, int, Layout, torch.Size, int], Rule]


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


def _scaled(
    factor: Callable[[Node, int], tuple[Tensor | None, float]], channel: bool = False
) -> Callable[..., Rule]:
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
    factor: Tensor = node._saved_other if slot == 0 else node._saved_self
    if not factor.is_floating_point():  # squares of integers would overflow
        factor = factor.to(accumulates_in(node._input_metadata[0].dtype))
    return factor, 1.0


def _layer_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    return (node._saved_input - node._saved_result1) * node._saved_result2, 1.0


def _group_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    inputs, groups = node._saved_input, node._saved_group
    mean, rstd = node._saved_result1.unsqueeze(-1), node._saved_result2.unsqueeze(-1)
    return ((inputs.reshape(len(inputs), groups, -1) - mean) * rstd).reshape(inputs.shape), 1.0


def _batch_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    return normalized(node)[0], 1.0


BINDERS: dict[tuple[str, int], Binder] = {
    ("AddmmBackward0", 0): _scaled(_plain),
    ("AddmmBackward0", 2): _product,
    ("MmBackward0", 1): _product,
    ("ConvolutionBackward0", 1): _convolution,
    ("ConvolutionBackward0", 2): _scaled(_plain, channel=True),
    (LOOKUP, 0): _lookup,
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


OPERATIONS = {name for name, _ in BINDERS}


def plain_lookup(node: Node) -> bool:
    """An embedding whose gradient is a plain sum over positions."""
    return not (node._saved_scale_grad_by_freq or node._saved_sparse)


def supported(node: Node, slot: int, layout: Layout, weight: torch.Size) -> bool:
    """Whether there is a rule for this slot that is exact for how the operation was called, with a
    weight that all samples share.
    """
    name = node.name()
    if (name, slot) not in BINDERS:
        return False
    first = layout.dim == 0
    match name, slot:
        case "AddmmBackward0", 0:
            return node._saved_beta == 1 and first and _shared(node, layout, weight)
        case "AddmmBackward0", _:
            return first and node._saved_alpha == 1
        case (("MmBackward0" | "ConvolutionBackward0" | "NativeGroupNormBackward0"), _):
            return first
        case "NativeBatchNormBackward0", _:
            return first and not node._saved_training
        case _ if name == LOOKUP:
            return plain_lookup(node) and layout.dim < node._saved_indices.ndim
        case "NativeLayerNormBackward0", _:
            return layout.dim < len(node._input_metadata[0].shape) - len(weight)
    return _shared(node, layout, weight)


def _shared(node: Node, layout: Layout, weight: torch.Size) -> bool:
    """Whether the weight is broadcast over the dimension of the samples."""
    aligned = layout.dim - len(node._input_metadata[0].shape) + len(weight)
    return aligned < 0 or weight[aligned] == 1
