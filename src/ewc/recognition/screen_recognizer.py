"""Task recognition with tasks that are sets of screens.

As in the forget-me-not process (see `forget_me_not`), the present task is the hidden state of a
Markov model, and a new task is opened for frames that no task explains. What differs:

1. A task is a set of screens (see `screens`), and is as likely as the best of them.
2. A frame is unknown if its own histogram codes it as well as every screen does. Unknown frames
   make a screen of nobody's, which explains frames for every task at some cost. It becomes a new
   task if nearly all of the last few frames were unknown, and a screen of the present task if at
   most half of them were and the last was not. (Copies of a game that are shown in turn change
   their screens one by one, and the task all at once.)
3. A frame is bounded evidence, and a frame of one color is none.
4. A new task that is soon left for another is merged with that one (see `probation`), and so are
   two tasks that take turns faster than tasks change (see `turns`).
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ewc.recognition.config import ScreenRecognizerConfig
from ewc.recognition.frames import channel_of_pixels, check_frame, downscaled, to_levels
from ewc.recognition.markov import Floats, normalized, switched
from ewc.recognition.probation import NONE, Probation
from ewc.recognition.screens import NOBODY, Cells, Screens, own_histogram
from ewc.recognition.turns import Turns

NEARLY_ALL = 0.75  # share of unknown frames that makes a task of them
AT_MOST = 0.5  # share of unknown frames that leaves them with the present task
DOUBT = 1e-3  # probability of each other task when one is opened


class ScreenRecognizer:
    """Recognizes which task the observed frames belong to, and opens a task for what is new.

    It is used as `ForgetMeNot`, with frames as there, but tells more games apart, opens fewer tasks
    in long visits, and merges tasks that prove to be one. It is made for drawn pictures, in which
    most pixels of a screen keep their brightness; noisy ones need fewer `levels`.

    Args:
        levels: number of brightness levels that a pixel is rounded to.
        stray: probability that a pixel shows something else than its screen.
        usual: share of what a screen usually saves that it must save to explain a frame.
        blank: frames with less information per pixel, in nats, are ignored.
        evidence: most evidence of one frame between two tasks, in nats.
        novelty: cost of an unknown frame for a known task, in nats.
        switch: probability per observation that the task changes.
        wait: observations before unknown frames are given to a task.
        screens: largest number of screens per task.
        shortest: observations of the shortest visit to a task (0: tasks are never merged).
        side: larger frames are averaged down to at most this height and width.

    Attributes:
        config: the settings, as a `ScreenRecognizerConfig`, which has their defaults.
        observations: number of frames observed.
        tasks: the tasks that exist, in the order in which they were opened. A task keeps its number
            until it is merged with an older one; no number is used twice.
        decided: true when the frames since the last such moment belong to the task that `observe`
            returned.
        merged: pairs (from, into) of tasks that were merged by the last call of `observe`.

    Example:
        >>> import numpy as np
        >>> from ewc.recognition import ScreenRecognizer
        >>> recognizer, random = ScreenRecognizer(), np.random.default_rng(0)
        >>> one, other = random.integers(0, 256, (2, 8, 8), np.uint8)
        >>> [recognizer.observe(one) for _ in range(8)][-1]
        0
        >>> [recognizer.observe(other) for _ in range(8)][-1]
        1
        >>> recognizer.observe(one), recognizer.num_tasks
        (0, 2)
    """

    def __init__(
        self,
        *,
        levels: int = ScreenRecognizerConfig.levels,
        stray: float = ScreenRecognizerConfig.stray,
        usual: float = ScreenRecognizerConfig.usual,
        blank: float = ScreenRecognizerConfig.blank,
        evidence: float = ScreenRecognizerConfig.evidence,
        novelty: float = ScreenRecognizerConfig.novelty,
        switch: float = ScreenRecognizerConfig.switch,
        wait: int = ScreenRecognizerConfig.wait,
        screens: int = ScreenRecognizerConfig.screens,
        shortest: int = ScreenRecognizerConfig.shortest,
        side: int = ScreenRecognizerConfig.side,
    ) -> None:
        self.config = ScreenRecognizerConfig(
            levels, stray, usual, blank, evidence, novelty, switch, wait, screens, shortest, side
        )
        self.observations = 0
        self.decided = False
        self.merged: list[tuple[int, int]] = []
        self.tasks = [0]
        self._task = 0  # returned last
        self._opened = 1
        self._recent: list[bool] = []  # since the first unknown frame: whether each was unknown
        self._log_posterior = np.log([0.5, 0.5])  # of the tasks and of a new one
        self._probation = Probation(self.config.shortest)
        # A new task is reported after it has waited, so that its first visit seems shorter.
        self._turns = Turns(self.config.shortest - self.config.wait)
        self._shape: tuple[int, ...] | None = None  # of frames, known from the first one on
        self._channels: Cells
        self._screens: Screens

    @property
    def num_tasks(self) -> int:
        """One at the start, for whatever comes first."""
        return len(self.tasks)

    @property
    def posterior(self) -> Floats:
        """The probability of each of `tasks` and, last, of a new one."""
        return np.exp(self._log_posterior)

    def observe(self, frame: NDArray[np.uint8]) -> int:
        """Take in a frame and return the most probable task."""
        check_frame(frame, self._shape)
        if self._shape is None:
            self._expect(frame.shape)
        self.observations += 1
        self.merged, self.decided = [], False
        levels = to_levels(downscaled(frame, self.config.side), self.config.levels)
        histogram = own_histogram(levels, self.config.levels, self._channels)
        own_code = float(np.log(histogram).sum())
        if -own_code >= self.config.blank * len(levels):
            self._weigh(levels, histogram, own_code)
        return self._task

    def _expect(self, shape: tuple[int, ...]) -> None:
        """Set up the screens for frames of this shape."""
        frame = downscaled(np.zeros(shape, dtype=np.uint8), self.config.side)
        self._channels = channel_of_pixels(frame)
        self._screens = Screens(frame.size, self.config.levels, self.config.stray)
        self._shape = shape

    def _weigh(self, levels: Cells, histogram: Floats, own_code: float) -> None:
        screens, config = self._screens, self.config
        likelihoods = screens.log_likelihoods(levels, histogram)
        savings = 1 - likelihoods / own_code
        fitting = np.where(screens.as_usual(savings, config.usual), likelihoods, -np.inf)
        explained = best_of_tasks(fitting, screens.owner, self.tasks)
        nobodys = np.flatnonzero(screens.owner == NOBODY)
        unknown = max(own_code, likelihoods[nobodys].max(initial=-np.inf))
        evidence = np.append(np.maximum(explained, unknown - config.novelty), unknown)
        evidence = np.maximum(evidence, evidence.max() - config.evidence)
        if self.observations > 1:
            self._log_posterior = switched(self._log_posterior, config.switch)
        self._log_posterior = normalized(self._log_posterior + evidence)
        is_unknown = bool(unknown >= explained.max())
        best = int(explained.argmax())
        if is_unknown:
            self._keep(levels, nobodys, savings)
        elif best == self._log_posterior.argmax():
            of_best = np.flatnonzero(screens.owner == self.tasks[best])
            screen = int(of_best[fitting[of_best].argmax()])
            screens.learn(screen, levels, float(savings[screen]))
        if is_unknown or len(nobodys):
            self._wait(is_unknown)
        self._task = self.tasks[int(self._log_posterior[:-1].argmax())]
        self.decided = not self._recent and (is_unknown or self.tasks[best] == self._task)
        for watcher in (self._probation, self._turns):
            pair = watcher.observe(self._task)
            if pair is not None:
                self._merge(*pair)

    def _keep(self, levels: Cells, nobodys: NDArray[np.intp], savings: Floats) -> None:
        """Learn an unknown frame in the screen that belongs to nobody yet."""
        if len(nobodys):
            self._screens.learn(int(nobodys[0]), levels, float(savings[nobodys[0]]))
        else:
            self._screens.open(levels, NOBODY)

    def _wait(self, is_unknown: bool) -> None:
        """Wait until it is clear whose the unknown frames are, and give them away."""
        self._recent = [*self._recent, is_unknown][-self.config.wait :]
        if len(self._recent) < self.config.wait:
            return
        unknown = sum(self._recent) / self.config.wait
        if unknown >= NEARLY_ALL:
            task = self._open()
        elif unknown <= AT_MOST and not is_unknown:  # or else this may be the first of a new task
            task = self.tasks[int(self._log_posterior[:-1].argmax())]
        else:
            return
        self._screens.give(NOBODY, task, self.config.screens)
        self._recent = []

    def _open(self) -> int:
        """Open a task that is almost certainly the present one; the first is task 0."""
        before = NONE
        if (self._screens.owner != NOBODY).any():
            before = self._task
            self.tasks.append(self._opened)
            self._opened += 1
        self._probation.begin(self.tasks[-1], before)
        log_posterior = np.full(len(self.tasks) + 1, np.log(DOUBT))
        log_posterior[-2] = 0.0
        self._log_posterior = normalized(log_posterior)
        return self.tasks[-1]

    def _merge(self, task: int, into: int) -> None:
        left, kept = self.tasks.index(task), self.tasks.index(into)
        log_posterior = self._log_posterior
        log_posterior[kept] = np.logaddexp(log_posterior[kept], log_posterior[left])
        self._log_posterior = np.delete(log_posterior, left)
        del self.tasks[left]
        self._screens.give(task, into, self.config.screens)
        self._probation.merge(task, into)
        self._turns.merge(task, into)
        self.merged.append((task, into))
        self._task = into if self._task == task else self._task

    def frozen(self) -> "FrozenScreenRecognizer":
        """A recognizer of the tasks as they are now, which neither learns nor opens one."""
        if self._shape is None:
            raise RuntimeError("nothing was observed yet: call observe before frozen")
        return FrozenScreenRecognizer(
            self._screens.copy(), self._channels, list(self.tasks), self._shape, self.config
        )

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        settings = asdict(self.config)
        if self._shape is None:
            return {"settings": settings, "shape": None}
        return {
            "settings": settings,
            "shape": list(self._shape),
            **{name: getattr(self, name) for name in _PLAIN},
            "tasks": list(self.tasks),
            "recent": list(self._recent),
            "merged": [list(pair) for pair in self.merged],
            "log_posterior": torch.tensor(self._log_posterior),
            "probation": self._probation.state_dict(),
            "turns": self._turns.state_dict(),
            "counts": torch.tensor(self._screens.counts),
            "frames": torch.tensor(self._screens.frames),
            "saved": torch.tensor(self._screens.saved),
            "owner": torch.tensor(self._screens.owner),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a recognizer with the same settings."""
        if "settings" not in state:
            raise ValueError(
                f"expected the state of a ScreenRecognizer, got the keys {list(state)[:3]}"
            )
        saved = ScreenRecognizerConfig(**state["settings"])
        if saved != self.config:
            raise ValueError(f"the state is of a recognizer with {saved}, not {self.config}")
        loaded = ScreenRecognizer(**asdict(saved))
        if state["shape"] is not None:
            loaded._fill(state)
        self.__dict__.update(loaded.__dict__)

    def _fill(self, state: Mapping[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.tasks, self._recent = list(state["tasks"]), list(state["recent"])
        self.merged = [(task, into) for task, into in state["merged"]]
        self._log_posterior = state["log_posterior"].numpy().copy()
        self._probation.load_state_dict(state["probation"])
        self._turns.load_state_dict(state["turns"])
        self._expect(tuple(state["shape"]))
        self._screens.restore(
            *(state[name].numpy() for name in ("counts", "frames", "saved", "owner"))
        )


_PLAIN = ("observations", "decided", "_task", "_opened")


class FrozenScreenRecognizer:
    """Recognizes tasks with fixed screens; at first all are equally probable."""

    def __init__(
        self,
        screens: Screens,
        channels: Cells,
        tasks: list[int],
        shape: tuple[int, ...],
        config: ScreenRecognizerConfig,
    ) -> None:
        self._screens, self._channels, self._tasks = screens, channels, tasks
        self._shape, self._config = shape, config
        self._log_posterior = normalized(np.zeros(len(tasks)))

    @property
    def posterior(self) -> Floats:
        """The probability of each task."""
        return np.exp(self._log_posterior)

    def observe(self, frame: NDArray[np.uint8]) -> int:
        """Take in a frame and return the most probable task."""
        check_frame(frame, self._shape)
        levels = to_levels(downscaled(frame, self._config.side), self._config.levels)
        histogram = own_histogram(levels, self._config.levels, self._channels)
        own_code = float(np.log(histogram).sum())
        if -own_code >= self._config.blank * len(levels) and len(self._screens):
            likelihoods = self._screens.log_likelihoods(levels, histogram)
            as_usual = self._screens.as_usual(1 - likelihoods / own_code, self._config.usual)
            if as_usual.any():  # otherwise the nearest screen is still the best guess
                likelihoods = np.where(as_usual, likelihoods, -np.inf)
            explained = best_of_tasks(likelihoods, self._screens.owner, self._tasks)
            if explained.max() > -np.inf:  # otherwise the first task has no screens yet
                evidence = np.maximum(explained, explained.max() - self._config.evidence)
                prior = switched(self._log_posterior, self._config.switch)
                self._log_posterior = normalized(prior + evidence)
        return self._tasks[int(self._log_posterior.argmax())]


def best_of_tasks(likelihoods: Floats, owner: NDArray[np.int64], tasks: list[int]) -> Floats:
    """The likelihood of each task's best screen; -inf for a task without any."""
    place = np.full(max(tasks) + 2, len(tasks))  # of a task in `tasks`; others come last
    place[tasks] = np.arange(len(tasks))
    best = np.full(len(tasks) + 1, -np.inf)
    np.maximum.at(best, place[owner], likelihoods)
    return best[:-1]
