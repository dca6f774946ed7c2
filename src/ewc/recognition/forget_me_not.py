"""Task recognition with the forget-me-not process of the paper's appendix.

The present task is the hidden state of a Markov model. With t observations made, it changes with
probability 1/t, to each of the K-1 others alike:

    p(c, t) ∝ p(o_t | c) Σ_c' Γ(c, c') p(c', t-1),    Γ(c, c') = 1 - 1/t        for c = c'
                                                                  1/t / (K-1)    otherwise

(The paper's Γ, without K-1, has rows that sum to one for two tasks only.) Every task is a model of
frames, and one more model is held out untouched. Time is cut into windows. Within a window all
models predict as if they had learned the frames since its start; at its end the most probable one
keeps them and the others are as before. If that is the held-out model, it becomes a new task.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .frames import check_frame, downscaled, to_levels
from .multinomials import Evidence, Multinomials

Floats = NDArray[np.float64]


class ForgetMeNot:
    """Says which task the observed frames belong to, and opens a task for what is new.

        recognizer = ForgetMeNot()
        task = recognizer.observe(frame)  # uint8 [..., height, width]

    `levels` grey levels a pixel, `prior` Dirichlet mass a pixel, `window` observations a window.
    Frames larger than `side` are averaged down to it.
    """

    def __init__(
        self, *, levels: int = 8, prior: float = 1.0, window: int = 4, side: int = 42
    ) -> None:
        _check_settings(levels, prior, window, side)
        self.settings = {"levels": levels, "prior": prior, "window": window, "side": side}
        self.levels, self.prior, self.window, self.side = levels, prior, window, side
        self.observations = 0
        self.decided = False  # a window has just ended: its frames belong to the task returned
        self._log_posterior = np.log([0.5, 0.5])  # task 0 and the held-out model
        self._shape: tuple[int, ...] | None = None  # of frames, known from the first one on
        self._models: Multinomials
        self._evidence: Evidence

    @property
    def num_tasks(self) -> int:
        """One at the start, for whatever comes first."""
        return len(self._log_posterior) - 1

    @property
    def posterior(self) -> Floats:
        """The probability of each task and, last, of the held-out model."""
        return np.exp(self._log_posterior)

    def observe(self, frame: NDArray[np.uint8]) -> int:
        """Take in a frame and return the most probable task."""
        check_frame(frame)
        if self._shape is None:
            self._expect(frame.shape)
        elif frame.shape != self._shape:
            raise ValueError(_unlike(frame.shape, self._shape))
        self.observations += 1
        cells = self._models.cells(to_levels(downscaled(frame, self.side), self.levels))
        if self.observations > 1:
            self._log_posterior = switched(self._log_posterior, 1 / self.observations)
        self._log_posterior = normalized(
            self._log_posterior + self._models.log_predictive(cells, self._evidence)
        )
        self._evidence.add(cells)
        self.decided = self._evidence.frames == self.window
        if self.decided:
            self._end_window()
        return int(self._log_posterior[:-1].argmax())

    def _expect(self, shape: tuple[int, ...]) -> None:
        """Set up the models for frames of this shape."""
        self._shape = shape
        pixels = downscaled(np.zeros(shape, dtype=np.uint8), self.side).size
        self._models = Multinomials(self.num_tasks + 1, pixels, self.levels, self.prior)
        self._evidence = Evidence(pixels * self.levels)

    def _end_window(self) -> None:
        best = int(self._log_posterior.argmax())
        self._models.learn(best, self._evidence)
        if best == self.num_tasks:
            self._models.add()
            self._log_posterior = np.append(self._log_posterior, -np.inf)
        self._evidence = Evidence(len(self._evidence.counts))

    def frozen(self) -> "Frozen":
        """A recogniser of the tasks as they are now, which neither learns nor opens one."""
        if self._shape is None:
            raise RuntimeError("nothing was observed yet: call observe before frozen")
        models = Multinomials(self.num_tasks, self._models.pixels, self.levels, self.prior)
        models.counts[:] = self._models.counts[:-1]
        models.frames[:] = self._models.frames[:-1]
        return Frozen(models, self._shape, self.side, switch=1 / (self.observations + 1))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        state: dict[str, Any] = {"settings": dict(self.settings), "shape": None}
        if self._shape is None:
            return state
        return state | {
            "shape": list(self._shape),
            "observations": self.observations,
            "decided": self.decided,
            "log_posterior": torch.tensor(self._log_posterior),
            "counts": torch.tensor(self._models.counts[:-1]),
            "frames": torch.tensor(self._models.frames[:-1]),
            "evidence_counts": torch.tensor(self._evidence.counts),
            "evidence_frames": self._evidence.frames,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a recogniser with the same settings."""
        if "settings" not in state:
            raise ValueError(f"expected the state of a ForgetMeNot, got the keys {list(state)[:3]}")
        if state["settings"] != self.settings:
            raise ValueError(
                f"the state is of a recogniser with {state['settings']}, not {self.settings}"
            )
        loaded = ForgetMeNot(**state["settings"])
        if state["shape"] is not None:
            loaded._fill(state)
        self.__dict__.update(loaded.__dict__)

    def _fill(self, state: Mapping[str, Any]) -> None:
        self.observations, self.decided = state["observations"], state["decided"]
        self._log_posterior = state["log_posterior"].numpy().copy()
        self._expect(tuple(state["shape"]))
        self._models.counts[:-1] = state["counts"].numpy()
        self._models.frames[:-1] = state["frames"].numpy()
        self._evidence.counts[:] = state["evidence_counts"].numpy()
        self._evidence.frames = state["evidence_frames"]


class Frozen:
    """Recognises tasks with fixed models; at first all are equally probable."""

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
        """Take in a frame and return the most probable task."""
        check_frame(frame)
        if frame.shape != self._shape:
            raise ValueError(_unlike(frame.shape, self._shape))
        cells = self._models.cells(to_levels(downscaled(frame, self._side), self._models.levels))
        prior = switched(self._log_posterior, self._switch)
        self._log_posterior = normalized(prior + self._models.log_predictive(cells))
        return int(self._log_posterior.argmax())


def switch_matrix(states: int, switch: float) -> Floats:
    """Γ: the state stays with probability 1 - `switch`, else goes to one of the others."""
    matrix = np.full((states, states), switch / max(1, states - 1))
    np.fill_diagonal(matrix, 1 - switch if states > 1 else 1)
    return matrix


def switched(log_p: Floats, switch: float) -> Floats:
    """log Σ_c' Γ(c, c') p(c')."""
    return _log_sum_exp(np.log(switch_matrix(len(log_p), switch)) + log_p)


def normalized(log_p: Floats) -> Floats:
    return log_p - _log_sum_exp(log_p)


def _log_sum_exp(terms: Floats) -> Floats:
    """Over the last axis."""
    largest = terms.max(axis=-1)
    total: Floats = largest + np.log(np.exp(terms - largest[..., None]).sum(axis=-1))
    return total


def _unlike(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    return f"expected frames of shape {expected} as before, got {shape}"


def _check_settings(levels: int, prior: float, window: int, side: int) -> None:
    if not 2 <= levels <= 256:
        raise ValueError(f"expected 2 to 256 levels, got {levels}")
    if not (np.isfinite(prior) and prior > 0):
        raise ValueError(f"expected a finite prior mass > 0, got {prior}")
    if window < 1 or side < 1:
        raise ValueError(f"expected window and side of at least 1, got {window} and {side}")
