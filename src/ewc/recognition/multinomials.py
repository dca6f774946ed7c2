"""Generative models of frames: for each, a Dirichlet-multinomial at every pixel.

    log p(o | model) = M/P Σ_x log[(n(x, o_x) + A/L) / (N + A)]

where n(x, l) counts the frames in which pixel x had level l of L, N is the number of frames, and A
is the mass of the uniform prior. The sum over the P pixels takes them for independent; they are
far from it, and a frame tells only as much as some M independent pixels would. With M = P, as in
the paper, a slightly new screen is overwhelming evidence for a new task.
"""

import numpy as np
from numpy.typing import NDArray

MANY = 2**16  # counts above which it is faster to sum them as they lie in memory, pixel by pixel


class Evidence:
    """Frames that no model has learned yet, as the counts they would add."""

    def __init__(self, cells: int) -> None:
        self.counts = np.zeros(cells, dtype=np.float32)
        self.frames = 0

    def add(self, cells: NDArray[np.intp]) -> None:
        self.counts[cells] += 1  # a frame has one cell per pixel, so none comes twice
        self.frames += 1


class Multinomials:
    """Models of frames with `pixels` pixels, each of `levels` levels; the last one is untouched.

    The cell of pixel x at level l is x * levels + l. `frames` is the number of frames that each
    model has learned, float64 [models].

    A frame needs one cell per pixel of every model, so the counts of a cell lie side by side in
    memory: float32 [cells, columns], one column per model and some to spare for models to come.
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
        """The cell of every pixel, given its level."""
        return self._first_cells + levels

    def log_predictive(
        self, cells: NDArray[np.intp], evidence: Evidence | None = None
    ) -> NDArray[np.float64]:
        """log p(frame | model, evidence) for every model, as if each had learned the evidence."""
        counts = self._columns[cells, : len(self)].T
        many = counts.size > MANY
        if not many:
            counts = np.ascontiguousarray(counts)
        counts += np.float32(self.prior / self.levels)
        frames = self.frames + self.prior
        if evidence is not None:
            counts += evidence.counts[cells]
            frames += evidence.frames
        if many:  # log a + log b = log ab: half as many logarithms
            half = len(cells) // 2
            counts[:, :half] *= counts[:, -half:]
            counts = counts[:, : len(cells) - half]
        np.log(counts, out=counts)
        total: NDArray[np.float64] = counts.sum(axis=1, dtype=np.float64)
        total -= self.pixels * np.log(frames)
        return np.multiply(total, self.weight)

    def learn(self, model: int, evidence: Evidence) -> None:
        cells = np.flatnonzero(evidence.counts > 0)
        self._columns[cells, model] += evidence.counts[cells]
        self.frames[model] += evidence.frames

    def add(self) -> None:
        """Append an untouched model."""
        cells, columns = self._columns.shape
        if len(self) == columns:  # doubled, so that few additions have to copy
            spare = np.zeros((cells, columns), dtype=np.float32)
            self._columns = np.concatenate([self._columns, spare], axis=1)
        self.frames = np.append(self.frames, 0.0)
