"""Generative models of frames: each has a Dirichlet-multinomial distribution at every pixel.

    log p(o | model) = M/P Σ_x log[(n(x, o_x) + A/L) / (N + A)]

where n(x, l) counts the frames in which pixel x had level l of L, N is the number of frames, and A
is the mass of the uniform prior. The sum treats the P pixels as independent. They are far from it,
and a frame tells only as much as some number M of independent pixels would. With M = P, as in the
paper, a slightly new screen is overwhelming evidence for a new task.
"""

import numpy as np
from numpy.typing import NDArray

SUM_BY_PIXEL_ABOVE = 2**16  # more counts are faster to sum in memory order, pixel by pixel


class WindowCounts:
    """The frames of the present window, which no model has learned yet, as counts to be added.

    Attributes:
        counts: how often each cell occurred, float32 [cells].
        frames: number of frames.
    """

    def __init__(self, cells: int) -> None:
        self.counts = np.zeros(cells, dtype=np.float32)
        self.frames = 0

    def add(self, cells: NDArray[np.intp]) -> None:
        """Add a frame, given the cell of each of its pixels."""
        self.counts[cells] += 1  # a frame has one cell per pixel, so none occurs twice
        self.frames += 1


class Multinomials:
    """Several models of frames, side by side.

    The cell of pixel x at level l has the number x * levels + l. A frame needs one cell per pixel
    of every model, so the counts of a cell are next to each other in memory: float32
    [cells, columns], with one column per model and spare ones for models to come.

    Args:
        models: number of models.
        pixels: number of pixels per frame.
        levels: number of levels per pixel.
        prior: mass A of the uniform prior.
        independent: number M of independent pixels that a frame counts as.

    Attributes:
        frames: number of frames that each model has learned, float64 [models].
    """

    def __init__(
        self, models: int, pixels: int, levels: int, prior: float, independent: float
    ) -> None:
        self._columns = np.zeros((pixels * levels, models), dtype=np.float32)
        self.frames = np.zeros(models)
        self.prior, self.levels, self.pixels = prior, levels, pixels
        self.weight = min(1.0, independent / pixels)
        self._first_cells = np.arange(pixels) * levels

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def counts(self) -> NDArray[np.float32]:
        """A view of all counts, float32 [models, cells]."""
        return self._columns[:, : len(self)].T

    def cells(self, levels: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the cell of every pixel, given its level."""
        return self._first_cells + levels

    def log_predictive(
        self, cells: NDArray[np.intp], window: WindowCounts | None = None
    ) -> NDArray[np.float64]:
        """Return log p(frame | model, window) of every model, as if each had learned the window.

        `cells` are the cells of the frame's pixels.
        """
        counts = self._columns[cells, : len(self)].T
        many = counts.size > SUM_BY_PIXEL_ABOVE
        if not many:
            counts = np.ascontiguousarray(counts)
        counts += np.float32(self.prior / self.levels)
        frames = self.frames + self.prior
        if window is not None:
            counts += window.counts[cells]
            frames += window.frames
        if many:  # log a + log b = log ab: half as many logarithms
            half = len(cells) // 2
            counts[:, :half] *= counts[:, -half:]
            counts = counts[:, : len(cells) - half]
        np.log(counts, out=counts)
        total: NDArray[np.float64] = counts.sum(axis=1, dtype=np.float64)
        total -= self.pixels * np.log(frames)
        return np.multiply(total, self.weight)

    def learn(self, model: int, window: WindowCounts) -> None:
        """Add the frames of a window to one model."""
        cells = np.flatnonzero(window.counts > 0)
        self._columns[cells, model] += window.counts[cells]
        self.frames[model] += window.frames

    def add(self) -> None:
        """Append a model that has learned nothing."""
        cells, columns = self._columns.shape
        if len(self) == columns:  # double the columns, so that few additions copy
            spare = np.zeros((cells, columns), dtype=np.float32)
            self._columns = np.concatenate([self._columns, spare], axis=1)
        self.frames = np.append(self.frames, 0.0)
