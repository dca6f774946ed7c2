"""Which rule belongs to which operation of the autograd graph.

A binder reads from a node of the graph what its rule needs. The keys of `BINDERS` are the names
that autograd gives to operations, each with the number of the input that is the weight. An
operation that is not listed is not wrong, only slow: its weights are done one sample at a time.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ewc.fisher.per_sample.graph import EMBEDDING, Node, SampleLayout
from ewc.fisher.per_sample.rules import (
    BroadcastRule,
    ConvolutionOptions,
    ConvolutionRule,
    EmbeddingRule,
    LinearRule,
    Rule,
    batch_norm_call,
    normalized,
)
from ewc.parameters import at_least_float32


class WeightInput(NamedTuple):
    """A weight that is an input of an operation.

    Attributes:
        node: the operation.
        slot: which of its inputs the weight is.
        layout: where the samples are in the output of the operation.
        shape: the shape of the weight.
    """

    node: Node
    slot: int
    layout: SampleLayout
    shape: torch.Size


class Binder(NamedTuple):
    """How to make a rule, and for which calls of the operation the rule is exact."""

    bind: Callable[[WeightInput, int], Rule]
    supports: Callable[[WeightInput], bool]


def bind(weight: WeightInput, batch: int) -> Rule:
    """Return the rule for a weight; `batch` is the number of samples."""
    return BINDERS[weight.node.name(), weight.slot].bind(weight, batch)


def supported(weight: WeightInput) -> bool:
    """Whether there is a rule that is exact for this call, with a weight that all samples share."""
    binder = BINDERS.get((weight.node.name(), weight.slot))
    return binder is not None and binder.supports(weight)


def padding_row(node: Node) -> int:
    """Return the row of an embedding that gets no gradient, or -1."""
    saved: int = node._saved_padding_idx
    return -1 if saved >= 2**63 else saved


def is_plain_embedding(node: Node) -> bool:
    """Whether the gradient of an embedding is a plain sum over positions."""
    return not (node._saved_scale_grad_by_freq or node._saved_sparse)


def _bind_linear(weight: WeightInput, batch: int) -> Rule:
    inputs = weight.node._saved_mat1 if weight.slot == 2 else weight.node._saved_self
    return LinearRule(weight.layout.by_sample(inputs, batch))


def _bind_convolution(weight: WeightInput, batch: int) -> Rule:
    node = weight.node
    options = ConvolutionOptions(
        node._saved_stride,
        node._saved_padding,
        node._saved_dilation,
        node._saved_groups,
        node._saved_transposed,
    )
    return ConvolutionRule(weight.layout.by_sample(node._saved_input, batch), weight.shape, options)


def _bind_embedding(weight: WeightInput, batch: int) -> Rule:
    indices = weight.layout.by_sample(weight.node._saved_indices, batch)
    return EmbeddingRule(indices, weight.shape[0], padding_row(weight.node))


def _broadcast(
    factor: Callable[[Node, int], tuple[Tensor | None, float]], channels: bool = False
) -> Callable[[WeightInput, int], Rule]:
    """Return a function that makes the rule for y = z ∘ factor ∘ scale.

    Args:
        factor: returns the factor (None for 1) and the scale, given the node and the slot.
        channels: whether z is aligned with dimension 1, instead of with the last dimensions.
    """

    def bind_broadcast(weight: WeightInput, batch: int) -> Rule:
        full = weight.node._input_metadata[0].shape
        tail = len(full) - 2 if channels else 0
        head = len(full) - len(weight.shape) - tail
        aligned = (1,) * head + tuple(weight.shape) + (1,) * tail
        values, scale = factor(weight.node, weight.slot)
        sample = list(full)
        sample[weight.layout.dim] //= batch
        if values is not None:
            values = weight.layout.by_sample(values.expand(full), batch)
        return BroadcastRule(values, scale, weight.shape, aligned, torch.Size(sample))

    return bind_broadcast


def _one(node: Node, slot: int) -> tuple[None, float]:
    return None, 1.0


def _of_add(node: Node, slot: int) -> tuple[None, float]:
    return None, float(node._saved_alpha) if slot == 1 else 1.0


def _of_mul(node: Node, slot: int) -> tuple[Tensor, float]:
    factor: Tensor = node._saved_other if slot == 0 else node._saved_self
    if not factor.is_floating_point():  # squares of integers would overflow
        factor = factor.to(at_least_float32(node._input_metadata[0].dtype))
    return factor, 1.0


def _of_layer_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    return (node._saved_input - node._saved_result1) * node._saved_result2, 1.0


def _of_group_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    inputs, groups = node._saved_input, node._saved_group
    mean, rstd = node._saved_result1.unsqueeze(-1), node._saved_result2.unsqueeze(-1)
    return ((inputs.reshape(len(inputs), groups, -1) - mean) * rstd).reshape(inputs.shape), 1.0


def _of_batch_norm(node: Node, slot: int) -> tuple[Tensor, float]:
    return normalized(batch_norm_call(node))[0], 1.0


def _samples_first(weight: WeightInput) -> bool:
    return weight.layout.dim == 0


def _is_shared(weight: WeightInput) -> bool:
    """Whether the weight is broadcast over the dimension of the samples."""
    rank = len(weight.node._input_metadata[0].shape)
    aligned = weight.layout.dim - rank + len(weight.shape)
    return aligned < 0 or weight.shape[aligned] == 1


def _supports_addmm_bias(weight: WeightInput) -> bool:
    return weight.node._saved_beta == 1 and _samples_first(weight) and _is_shared(weight)


def _supports_addmm_weight(weight: WeightInput) -> bool:
    is_plain = weight.node._saved_alpha == 1 and _is_dense(weight.node._saved_mat1)
    return _samples_first(weight) and bool(is_plain)


def _supports_mm_weight(weight: WeightInput) -> bool:
    return _samples_first(weight) and _is_dense(weight.node._saved_self)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided


def _supports_embedding(weight: WeightInput) -> bool:
    node = weight.node
    return is_plain_embedding(node) and bool(weight.layout.dim < node._saved_indices.ndim)


def _supports_layer_norm(weight: WeightInput) -> bool:
    return weight.layout.dim < len(weight.node._input_metadata[0].shape) - len(weight.shape)


def _supports_batch_norm(weight: WeightInput) -> bool:
    return _samples_first(weight) and not weight.node._saved_training


_BIAS_LAST = _broadcast(_one)
_BIAS_CHANNELS = _broadcast(_one, channels=True)

BINDERS: dict[tuple[str, int], Binder] = {
    ("AddmmBackward0", 0): Binder(_BIAS_LAST, _supports_addmm_bias),
    ("AddmmBackward0", 2): Binder(_bind_linear, _supports_addmm_weight),
    ("MmBackward0", 1): Binder(_bind_linear, _supports_mm_weight),
    ("ConvolutionBackward0", 1): Binder(_bind_convolution, _samples_first),
    ("ConvolutionBackward0", 2): Binder(_BIAS_CHANNELS, _samples_first),
    (EMBEDDING, 0): Binder(_bind_embedding, _supports_embedding),
    ("NativeLayerNormBackward0", 1): Binder(_broadcast(_of_layer_norm), _supports_layer_norm),
    ("NativeLayerNormBackward0", 2): Binder(_BIAS_LAST, _supports_layer_norm),
    ("NativeGroupNormBackward0", 1): Binder(_broadcast(_of_group_norm, True), _samples_first),
    ("NativeGroupNormBackward0", 2): Binder(_BIAS_CHANNELS, _samples_first),
    ("NativeBatchNormBackward0", 1): Binder(_broadcast(_of_batch_norm, True), _supports_batch_norm),
    ("NativeBatchNormBackward0", 2): Binder(_BIAS_CHANNELS, _supports_batch_norm),
    ("AddBackward0", 0): Binder(_broadcast(_of_add), _is_shared),
    ("AddBackward0", 1): Binder(_broadcast(_of_add), _is_shared),
    ("MulBackward0", 0): Binder(_broadcast(_of_mul), _is_shared),
    ("MulBackward0", 1): Binder(_broadcast(_of_mul), _is_shared),
    ("ExpandBackward0", 0): Binder(_BIAS_LAST, _is_shared),
}
OPERATIONS = {name for name, _ in BINDERS}  # those that have a rule
