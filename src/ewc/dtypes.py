"""The number type in which squares are summed and wells are kept: at least float32."""

from functools import cache

import torch
from torch import Tensor


@cache
def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return `dtype`, or float32 where `dtype` is less precise.

    In half precision the squares of small gradients vanish, and so do small steps of the weights.
    """
    return torch.promote_types(dtype, torch.float32)


def widened(tensor: Tensor) -> Tensor:
    """Return the tensor in at least float32; the tensor itself if it is in such a type."""
    return tensor.to(at_least_float32(tensor.dtype))
