"""Frames as the recognizer sees them: averaged down, and rounded to a few levels."""

import numpy as np
from numpy.typing import NDArray


def check_frame(frame: object, shape: tuple[int, ...] | None) -> None:
    """Raise unless this is a frame: uint8 [..., height, width] or [..., height, width, colors].

    Args:
        frame: what was given as a frame.
        shape: the shape of the frames before, or None if this is the first.
    """
    if not isinstance(frame, np.ndarray):
        raise TypeError(f"expected a frame as a numpy array, got {type(frame).__name__}")
    if frame.dtype != np.uint8:
        raise TypeError(f"expected a frame of uint8 (0 to 255), got {frame.dtype}")
    if frame.ndim < 2 or frame.size == 0:
        raise ValueError(f"expected a frame [..., height, width], got the shape {frame.shape}")
    if shape not in (None, frame.shape):
        raise ValueError(f"expected frames of shape {shape} as before, got {frame.shape}")


def downscaled(frame: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return the frame with height and width of at most `side`, as means over squares of pixels.

    84x84 becomes 42x42 for `side` = 42. A frame that is small enough stays as it is. Rows and
    columns that do not fill a square are left out, and a side that is shorter than a square is
    averaged as a whole. Colors stay separate.
    """
    if _has_colors_last(frame.shape):
        return np.moveaxis(downscaled(np.moveaxis(frame, -1, 0), side), 0, -1)
    height, width = frame.shape[-2:]
    factor = -(-max(height, width) // side)
    if factor == 1:
        return frame
    rows, columns = min(factor, height), min(factor, width)
    height, width = height // rows * rows, width // columns * columns
    total = np.zeros((*frame.shape[:-2], height // rows, width // columns), dtype=np.uint32)
    for row in range(rows):
        for column in range(columns):
            total += frame[..., row:height:rows, column:width:columns]
    mean: NDArray[np.uint8] = (total // (rows * columns)).astype(np.uint8)
    return mean


def channel_of_pixels(frame: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the channel of each pixel, as one flat array: its color, or all axes but two."""
    pixels = np.arange(frame.size)
    channels: NDArray[np.intp] = (
        pixels % frame.shape[-1]
        if _has_colors_last(frame.shape)
        else pixels // (frame.shape[-2] * frame.shape[-1])
    )
    return channels


def _has_colors_last(shape: tuple[int, ...]) -> bool:
    """Whether the last axis has 1, 3 or 4 colors, and not a few columns of pixels."""
    return len(shape) > 2 and shape[-1] in (1, 3, 4) and min(shape[-3:-1]) > 4


def to_levels(frame: NDArray[np.uint8], levels: int) -> NDArray[np.intp]:
    """Return the level of each pixel, from 0 to `levels` - 1, as one flat array."""
    return (frame.reshape(-1).astype(np.intp) * levels) >> 8
