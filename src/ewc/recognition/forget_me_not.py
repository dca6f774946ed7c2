"""Task recognition with the forget-me-not process of the paper's appendix.

The current task is the hidden state of a Markov model. After t observations it changes with
probability 1/t, to each of the K-1 others with the same probability:

    p(c, t) ∝ p(o_t | c) Σ_c' Γ(c, c') p(c', t-1),    Γ(c, c') = 1 - 1/t        for c = c'
                                                                  1/t / (K-1)    otherwise

(The paper's Γ, without K-1, has rows that sum to one for two tasks only.) Every task is a model of
frames, and one more model is held out, which has learned nothing. Time is divided into windows.
Within a window all models predict as if they had learned the frames since its start. At its end the
most probable model learns them and the others stay as before. If that is the held-out model, it
becomes a new task.

Two things are added. The pixels of a frame count as only a few independent ones (see
`multinomials`), which makes every model less certain, so that the recognizer leaves or opens a task
less readily. And the held-out model must win several windows in a row to become a task; until then
no model learns the frames. Its first win is often a window in which the task changed: this mixture
of frames resembles nothing known, and would become a task that never comes back.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ewc.recognition.config import RecognizerConfig


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


Floats = NDArray[np.float64]


def switched(log_p: Floats, switch: float) -> Floats:
    """Return log Σ_c' Γ(c, c') p(c'), where a state stays with probability 1 - `switch`.

    Otherwise it goes to each of the K-1 others with probability g = `switch` / (K-1), so that the
    sum is g Σ_c' p(c') + (1 - `switch` - g) p(c).
    """
    if len(log_p) == 1:
        return log_p
    largest = log_p.max()
    p = np.exp(log_p - largest)
    g = switch / (len(p) - 1)
    total: Floats = largest + np.log(g * p.sum() + (1 - switch - g) * p)
    return total


def normalized(log_p: Floats) -> Floats:
    """Return the logarithms of the same probabilities, scaled to sum to one."""
    largest = log_p.max()
    total: Floats = log_p - (largest + np.log(np.exp(log_p - largest).sum()))
    return total


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


class ForgetMeNot:
    """Recognizes which task the observed frames belong to, and opens a task for what is new.

    A frame is an array of uint8, [height, width] or [height, width, colors]. It may have further
    axes in front, such as channels. A last axis of 1, 3 or 4 after two longer ones is taken for
    colors, each of which is modeled separately.

    Tasks are opened sooner with less prior mass, fewer wins and more independent pixels. In the
    other direction, tasks that look alike become one.

    One observation of 42x42 pixels takes less than a millisecond with 200 tasks.

    Args:
        levels: number of brightness levels that a pixel is rounded to.
        prior: mass of the Dirichlet prior per pixel.
        window: observations per window.
        wins: windows in a row that the held-out model must win to become a task.
        independent: number of independent pixels that a frame counts as (inf: all of them).
        side: larger frames are averaged down to at most this height and width.

    Attributes:
        config: the settings, as a `RecognizerConfig`.
        observations: number of frames observed.
        decided: true when a window has just ended with a winner. The frames since the last such
            moment belong to the task that `observe` returned.

    Example:
        >>> import numpy as np, ewc
        >>> recognizer = ewc.ForgetMeNot(wins=2)
        >>> black, white = np.zeros((8, 8), np.uint8), np.full((8, 8), 255, np.uint8)
        >>> [recognizer.observe(black) for _ in range(4)]
        [0, 0, 0, 0]
        >>> [recognizer.observe(white) for _ in range(8)][-1]
        1
        >>> recognizer.num_tasks
        2
    """

    def __init__(
        self,
        *,
        levels: int = RecognizerConfig.levels,
        prior: float = RecognizerConfig.prior,
        window: int = RecognizerConfig.window,
        wins: int = RecognizerConfig.wins,
        independent: float = RecognizerConfig.independent,
        side: int = RecognizerConfig.side,
    ) -> None:
        self.config = RecognizerConfig(levels, prior, window, wins, independent, side)
        self.observations = 0
        self.decided = False
        self._wins = 0  # windows in a row that the held-out model won
        self._log_posterior = np.log([0.5, 0.5])  # task 0 and the held-out model
        self._shape: tuple[int, ...] | None = None  # of frames, known from the first one on
        self._models: Multinomials
        self._window: WindowCounts

    @property
    def num_tasks(self) -> int:
        """Number of tasks: one at the start, for whatever comes first."""
        return len(self._log_posterior) - 1

    @property
    def posterior(self) -> Floats:
        """The probability of each task and, last, of the held-out model."""
        return np.exp(self._log_posterior)

    def observe(self, frame: NDArray[np.uint8]) -> int:
        """Observe a frame and return the most probable task.

        Example:
            >>> import numpy as np, ewc
            >>> ewc.ForgetMeNot().observe(np.zeros((8, 8), np.uint8))
            0
        """
        check_frame(frame, self._shape)
        if self._shape is None:
            self._set_frame_shape(frame.shape)
        self.observations += 1
        cells = self._models.cells(
            to_levels(downscaled(frame, self.config.side), self.config.levels)
        )
        if self.observations > 1:
            self._log_posterior = switched(self._log_posterior, 1 / self.observations)
        self._log_posterior = normalized(
            self._log_posterior + self._models.log_predictive(cells, self._window)
        )
        self._window.add(cells)
        self.decided = self._window.frames == self.config.window and self._end_window()
        return int(self._log_posterior[:-1].argmax())

    def _set_frame_shape(self, shape: tuple[int, ...]) -> None:
        """Set up the models for frames of this shape."""
        pixels = downscaled(np.zeros(shape, dtype=np.uint8), self.config.side).size
        self._models = self._multinomials(self.num_tasks + 1, pixels)
        self._window = WindowCounts(pixels * self.config.levels)
        self._shape = shape

    def _multinomials(self, models: int, pixels: int) -> Multinomials:
        config = self.config
        return Multinomials(models, pixels, config.levels, config.prior, config.independent)

    def _end_window(self) -> bool:
        """Let the winner learn the window; return false if it may not become a task yet."""
        best = int(self._log_posterior.argmax())
        is_new = best == self.num_tasks
        self._wins = self._wins + 1 if is_new else 0
        decided = not is_new or self._wins == self.config.wins
        if decided:
            self._models.learn(best, self._window)
            self._wins = 0
        if decided and is_new:
            self._models.add()
            self._log_posterior = np.append(self._log_posterior, -np.inf)
        self._window = WindowCounts(len(self._window.counts))
        return decided

    def frozen(self) -> "FrozenRecognizer":
        """Return a recognizer of the present tasks, which does not learn and opens no task.

        Example:
            >>> import numpy as np, ewc
            >>> recognizer, frame = ewc.ForgetMeNot(), np.zeros((8, 8), np.uint8)
            >>> recognizer.observe(frame), recognizer.frozen().observe(frame)
            (0, 0)
        """
        if self._shape is None:
            raise RuntimeError("nothing was observed yet: call observe before frozen")
        models = self._multinomials(self.num_tasks, self._models.pixels)
        models.counts[:] = self._models.counts[:-1]
        models.frames[:] = self._models.frames[:-1]
        return FrozenRecognizer(
            models, self._shape, self.config.side, switch=1 / (self.observations + 1)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values.

        Example:
            >>> import torch, ewc
            >>> torch.save(ewc.ForgetMeNot().state_dict(), "recognizer.pt")
        """
        settings = asdict(self.config)
        if self._shape is None:
            return {"settings": settings, "shape": None}
        return {
            "settings": settings,
            "shape": list(self._shape),
            "observations": self.observations,
            "decided": self.decided,
            "wins": self._wins,
            "log_posterior": torch.tensor(self._log_posterior),
            "counts": torch.tensor(self._models.counts[:-1]),
            "frames": torch.tensor(self._models.frames[:-1]),
            "evidence_counts": torch.tensor(self._window.counts),
            "evidence_frames": self._window.frames,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a recognizer with the same settings.

        Example:
            >>> import ewc
            >>> saved = ewc.ForgetMeNot(window=8).state_dict()
            >>> ewc.ForgetMeNot(window=8).load_state_dict(saved)
        """
        if "settings" not in state:
            raise ValueError(f"expected the state of a ForgetMeNot, got the keys {list(state)[:3]}")
        saved = RecognizerConfig(**state["settings"])
        if saved != self.config:
            raise ValueError(f"the state is of a recognizer with {saved}, not {self.config}")
        loaded = ForgetMeNot(**asdict(saved))
        if state["shape"] is not None:
            loaded._restore(state)
        self.__dict__.update(loaded.__dict__)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.observations, self.decided = state["observations"], state["decided"]
        self._wins = state["wins"]
        self._log_posterior = state["log_posterior"].numpy().copy()
        self._set_frame_shape(tuple(state["shape"]))
        self._models.counts[:-1] = state["counts"].numpy()
        self._models.frames[:-1] = state["frames"].numpy()
        self._window.counts[:] = state["evidence_counts"].numpy()
        self._window.frames = state["evidence_frames"]


class FrozenRecognizer:
    """Recognizes tasks with fixed models; at first all tasks are equally probable.

    Args:
        models: one model per task.
        shape: the shape of frames.
        side: larger frames are averaged down to at most this height and width.
        switch: probability of a change of the task, per observation.
    """

    def __init__(
        self, models: Multinomials, shape: tuple[int, ...], side: int, *, switch: float
    ) -> None:
        self._models, self._shape, self._side, self._switch = models, shape, side, switch
        self._log_posterior = normalized(np.zeros(len(models)))

    @property
    def posterior(self) -> Floats:
        """The probability of each task."""
        return np.exp(self._log_posterior)

    def observe(self, frame: NDArray[np.uint8]) -> int:
        """Observe a frame and return the most probable task."""
        check_frame(frame, self._shape)
        cells = self._models.cells(to_levels(downscaled(frame, self._side), self._models.levels))
        prior = switched(self._log_posterior, self._switch)
        self._log_posterior = normalized(prior + self._models.log_predictive(cells))
        return int(self._log_posterior.argmax())
