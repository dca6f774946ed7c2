"""The last frames of each copy of a game, stacked into the states that a network sees."""

import numpy as np
from numpy.typing import NDArray


class FrameStacks:
    """The states of several copies: the last `history` frames of each, the newest last.

    Args:
        copies: number of copies.
        frame_shape: channels, height and width of a frame.
        history: frames per state. Frames from before the start of an episode are zero.

    Attributes:
        states: uint8 [copies, history * channels, height, width].
    """

    def __init__(self, copies: int, frame_shape: tuple[int, ...], history: int) -> None:
        channels, *sides = frame_shape
        self._channels = channels
        self.states = np.zeros((copies, history * channels, *sides), np.uint8)

    def push(self, frames: NDArray[np.uint8], is_first: NDArray[np.bool_]) -> None:
        """Add one frame per copy; a copy whose frame is the first of an episode is cleared."""
        self.states[is_first] = 0
        self.push_some(np.arange(len(frames)), frames)

    def push_some(self, copies: NDArray[np.int64], frames: NDArray[np.uint8]) -> None:
        """Add one frame to each of these copies, and none to the others."""
        self.states[copies, : -self._channels] = self.states[copies, self._channels :]
        self.states[copies, -self._channels :] = frames

    def newest(self, copy: int) -> NDArray[np.uint8]:
        """Return the last frame of a copy, as a view."""
        return self.states[copy, -self._channels :]
