"""Numbers >= 0 in 8 bits each, with the same relative error for large and small ones.

    x = top · 2^((code − 255) / STEPS_PER_OCTAVE)    for code = 1 to 255, and x = 0 for code = 0

`top` is the largest number of the tensor. The codes reach down to 2^-32 of it; what is smaller
becomes zero. Rounding to the nearest code changes a number by at most `RELATIVE_ERROR`.
"""

import torch
from torch import Tensor

OCTAVES = 32
STEPS_PER_OCTAVE = 254 / OCTAVES
RELATIVE_ERROR = 2 ** (0.5 / STEPS_PER_OCTAVE) - 1  # 4.5 %


def encode(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of finite numbers >= 0, and the largest of the numbers."""
    values = values.double()
    top = values.max() if values.numel() else values.new_zeros(())
    codes = (255 + STEPS_PER_OCTAVE * (values / top).log2()).round().clamp(0, 255)
    return codes.nan_to_num(nan=0.0).to(torch.uint8), top  # 0/0 in a tensor of zeros


def decode(codes: Tensor, top: Tensor) -> Tensor:
    """Return the numbers of some codes, in float32."""
    values = top.double() * torch.exp2((codes.double() - 255) / STEPS_PER_OCTAVE)
    return values.where(codes > 0, 0.0).float()
