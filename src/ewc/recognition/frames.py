"""Frames as the recogniser sees them: averaged down, and rounded to a few levels."""

import numpy as np
from numpy.typing import NDArray


def check_frame(frame: object) -> None:
    """Raise unless this is a frame: uint8 [..., height, width]."""
    if not isinstance(frame, np.ndarray):
        raise TypeError(f"expected a frame as a numpy array, got {type(frame).__name__}")
    if frame.dtype != np.uint8:
        raise TypeError(f"expected a frame of uint8 (0 to 255), got {frame.dtype}")
    if frame.ndim < 2 or frame.size == 0:
        raise ValueError(f"expected a frame [..., height, width], got the shape {frame.shape}")


def downscaled(frame: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """The frame with both sides at most `side`, as means over squares of pixels.

    84x84 becomes 42x42 for `side` = 42; what is small enough stays as it is. Rows and columns that
    do not fill a square are left out.
    """
    height, width = frame.shape[-2:]
    factor = -(-max(height, width) // side)
    if factor == 1:
        return frame
    height, width = height // factor * factor, width // factor * factor
    total = np.zeros((*frame.shape[:-2], height // factor, width // factor), dtype=np.uint32)
    for row in range(factor):
        for column in range(factor):
            total += frame[..., row:height:factor, column:width:factor]
    mean: NDArray[np.uint8] = (total // factor**2).astype(np.uint8)
    return mean


def to_levels(frame: NDArray[np.uint8], levels: int) -> NDArray[np.intp]:
    """Each pixel's level, from 0 to `levels` - 1, in one row."""
    return (frame.reshape(-1).astype(np.intp) * levels) >> 8
