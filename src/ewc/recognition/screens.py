"""Screens: models of frames, several of which make up a task.

A pixel of a frame either shows what the screen has shown there before, or with probability ε
anything that is in the frame, whose histogram h is the share of its pixels that has each level,
channel by channel:

    log p(o | screen) = Σ_x log[(1 - ε) n(x, o_x) / N + ε h(o_x)]

where n(x, l) counts the frames in which pixel x had level l, and N is the number of frames. So a
pixel that disagrees costs at most log 1/ε more than its level costs without any model, and a black
pixel in a dark frame is hardly evidence for a dark screen. A screen explains a frame if it codes it
better than the frame's own histogram does: log p(o | screen) > Σ_x log h(o_x).
"""

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.intp]
Floats = NDArray[np.float64]

SMOOTHING = 0.05  # added to each count of a frame's histogram
FACTORS = 4  # numbers multiplied before a logarithm is taken; their product fits in float32
NOBODY = -1  # owner of the screens that belong to no task yet


def own_histogram(levels: Cells, num_levels: int, channels: Cells) -> Floats:
    """The share of each pixel's level in its channel of the frame, float64 [pixels].

    Args:
        levels: the level of each pixel.
        num_levels: how many levels there are.
        channels: the channel of each pixel, numbered from 0.
    """
    cells = channels * num_levels + levels
    num_channels = channels[-1] + 1
    counts = np.bincount(cells, minlength=num_channels * num_levels)
    shares = counts.reshape(num_channels, num_levels) + SMOOTHING
    of_pixels: Floats = (shares / shares.sum(axis=1, keepdims=True)).reshape(-1)[cells]
    return of_pixels


class Screens:
    """Screens of frames with `pixels` pixels, each of `levels` levels; `stray` is ε above.

    The cell of pixel x at level l is x * levels + l. The counts of a cell lie side by side in
    memory, float32 [cells, columns]: one column per screen and some to spare.

    Attributes:
        frames: number of frames that each screen has learned, float64 [screens].
        saved: what each screen saved of the codes of these frames in all, float64 [screens].
        owner: the task that each screen belongs to, or `NOBODY`, int64 [screens].
    """

    def __init__(self, pixels: int, levels: int, stray: float) -> None:
        self.pixels, self.levels, self.stray = pixels, levels, stray
        self._columns = np.zeros((pixels * levels, 8), dtype=np.float32)
        self._first_cells = np.arange(pixels) * levels
        self.frames = np.zeros(0)
        self.saved = np.zeros(0)
        self.owner = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def counts(self) -> NDArray[np.float32]:
        """A view of all counts, float32 [cells, screens]."""
        return self._columns[:, : len(self)]

    def log_likelihoods(self, levels: Cells, histogram: Floats) -> Floats:
        """log p(frame | screen) of every screen, float64 [screens]."""
        values = self._columns[self._first_cells + levels, : len(self)]
        values *= ((1 - self.stray) / self.frames).astype(np.float32)
        values += (self.stray * histogram).astype(np.float32)[:, None]
        rows = len(values) // FACTORS
        whole = rows * FACTORS
        products = values[:whole].reshape(FACTORS, rows, len(self)).prod(axis=0)
        logs: Floats = np.log(products).sum(axis=0, dtype=np.float64)
        logs += np.log(values[whole:]).sum(axis=0, dtype=np.float64)
        return logs

    @property
    def usual_saving(self) -> Floats:
        """The share of a frame's own code that each screen saves, on average, float64 [screens].

        The first frame of a screen does not count: the screen is made of it.
        """
        usual: Floats = self.saved / np.maximum(self.frames - 1, 1)
        return usual

    def as_usual(self, savings: Floats, share: float) -> NDArray[np.bool_]:
        """Whether each screen saves at least this share of what it usually saves, bool [screens].

        Args:
            savings: the share of a frame's own code that each screen saves, float64 [screens].
            share: the share of that.
        """
        enough: NDArray[np.bool_] = savings >= share * self.usual_saving
        return enough

    def learn(self, screen: int, levels: Cells, saving: float = 0.0) -> None:
        """Learn a frame, of whose own code the screen has saved this share."""
        self._columns[self._first_cells + levels, screen] += 1
        self.frames[screen] += 1
        self.saved[screen] += saving

    def open(self, levels: Cells, owner: int) -> None:
        """Append a screen that has learned one frame."""
        if len(self) == self._columns.shape[1]:  # doubled, so that few additions have to copy
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self.frames, self.saved = np.append(self.frames, 0.0), np.append(self.saved, 0.0)
        self.owner = np.append(self.owner, owner)
        self._columns[:, len(self) - 1] = 0
        self.learn(len(self) - 1, levels)

    def give(self, owner: int, to: int, at_most: int) -> None:
        """Give an owner's screens to another, and join screens of that one until few are left.

        Args:
            owner: whose screens are given away.
            to: who gets them.
            at_most: screens that `to` may have. While there are more, the screen with the fewest
                frames is joined with the one that shares most of its pixels.
        """
        self.owner[self.owner == owner] = to
        while len(mine := np.flatnonzero(self.owner == to)) > at_most:
            smallest = mine[self.frames[mine].argmin()]
            others = mine[mine != smallest]
            self._join(int(smallest), int(others[self._overlap(int(smallest), others).argmax()]))

    def _overlap(self, screen: int, others: NDArray[np.intp]) -> Floats:
        cells = np.flatnonzero(self._columns[:, screen])
        shares = self._columns[np.ix_(cells, others)] / self.frames[others]
        overlap: Floats = self._columns[cells, screen].astype(np.float64) @ shares
        return overlap

    def _join(self, screen: int, into: int) -> None:
        """Add the counts of a screen to another; the last screen takes its place."""
        self._columns[:, into] += self._columns[:, screen]
        self.frames[into] += self.frames[screen]
        self.saved[into] += self.saved[screen]
        last = len(self) - 1
        self._columns[:, screen] = self._columns[:, last]
        for values in (self.frames, self.saved, self.owner):
            values[screen] = values[last]
        self.frames, self.saved = self.frames[:-1].copy(), self.saved[:-1].copy()
        self.owner = self.owner[:-1].copy()

    def copy(self) -> "Screens":
        other = Screens(self.pixels, self.levels, self.stray)
        other.restore(self.counts, self.frames, self.saved, self.owner)
        return other

    def restore(
        self, counts: NDArray[np.float32], frames: Floats, saved: Floats, owner: NDArray[np.int64]
    ) -> None:
        """Take over the attributes of these names; copies them."""
        self._columns = np.zeros((len(counts), max(8, len(frames))), dtype=np.float32)
        self._columns[:, : len(frames)] = counts
        self.frames, self.saved = np.array(frames), np.array(saved)
        self.owner = np.array(owner)
