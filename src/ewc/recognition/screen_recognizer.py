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

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ewc.recognition.config import ScreenRecognizerConfig
from ewc.recognition.forget_me_not import (
    Floats,
    channel_of_pixels,
    check_frame,
    downscaled,
    normalized,
    switched,
    to_levels,
)


class Turns:
    """Watches the task at every observation, and says which tasks take turns.

    A task that is reported for only a moment may be a mistake. So a stay in a task begins when the
    task has been reported for a quarter of the shortest visit in a row, and lasts until the stay in
    another begins.

    Args:
        length: observations of the shortest visit to a task (0 or less: nothing is ever merged).
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.reported, self.in_a_row = NONE, 0  # the last task, and for how many observations
        self.present, self.before = NONE, NONE  # tasks of the present stay and the one before it
        self.stayed = 0  # observations since the present stay began

    def observe(self, task: int) -> tuple[int, int] | None:
        """Note the task of an observation; return (younger, older) if they should be merged."""
        self.in_a_row = self.in_a_row + 1 if task == self.reported else 1
        self.reported = task
        self.stayed += 1
        if task == self.present or self.in_a_row < STAY_BEGINS * self.length:
            return None
        took_turns = task == self.before and self.stayed - self.in_a_row < self.length
        pair = (max(self.present, task), min(self.present, task))
        self.before, self.present, self.stayed = self.present, task, self.in_a_row
        return pair if took_turns and self.length > 0 else None

    def merge(self, task: int, into: int) -> None:
        """From now on the two are one task."""
        for name in ("reported", "present", "before"):
            if getattr(self, name) == task:
                setattr(self, name, into)
        if self.before == self.present:
            self.before = NONE

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _STATE:
            setattr(self, name, state[name])


_STATE = ("reported", "in_a_row", "present", "before", "stayed")


STAY_BEGINS = 0.25  # fraction of the shortest visit, reported in a row, after which a stay begins
BELONGS_BEFORE = 0.25  # of the reports of a new task and the one before it: more, and they are one
NONE = -1  # stands for the task before the first one


class Probation:
    """Watches the task at every observation, and says which new tasks should be merged.

    When a new task has existed for `length` observations, it belongs to the task before it if that
    one was reported for more than a quarter of the time that the two share. Otherwise it has passed
    if it was reported most of all, and belongs to the one that was if not: then it was the first
    screen of a task that has shown others since. The same holds if a task was opened right after
    it, sooner than a visit can end.

    Args:
        length: observations of the shortest visit to a task (0: nothing is ever merged).
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.before: dict[int, int] = {}  # by task on probation, the task that it followed
        self.reported: dict[int, Counter[int]] = {}  # and how often each was reported since then

    def begin(self, task: int, before: int) -> None:
        if self.length > 0:
            self.before[task], self.reported[task] = before, Counter()

    def observe(self, task: int) -> tuple[int, int] | None:
        """Note the task of an observation; return (younger, older) if they should be merged."""
        for reported in self.reported.values():
            reported[task] += 1
        for new, reported in self.reported.items():
            if reported.total() >= self.length:
                return self._end(new)
        return None

    def _end(self, new: int) -> tuple[int, int] | None:
        before, reported = self.before.pop(new), self.reported.pop(new)
        if reported[before] > BELONGS_BEFORE * (reported[before] + reported[new]):
            other = before
        else:
            other = max(reported, key=lambda task: (reported[task], task == new))
        if other == new:
            other = max((task for task, left in self.before.items() if left == new), default=new)
        return None if other == new else (max(new, other), min(new, other))

    def merge(self, task: int, into: int) -> None:
        """From now on the two are one task."""
        self.before.pop(task, None)
        self.reported.pop(task, None)
        for new, reported in self.reported.items():
            reported[into] += reported.pop(task, 0)
            self.before[new] = into if self.before[new] == task else self.before[new]

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "before": [list(item) for item in self.before.items()],
            "reported": [[new, *item] for new, r in self.reported.items() for item in r.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = dict(state["before"])
        self.reported = {new: Counter() for new in self.before}
        for new, task, observations in state["reported"]:
            self.reported[new][task] = observations


Cells = NDArray[np.intp]

SMOOTHING = 0.05  # added to each count of a frame's histogram
FACTORS = 4  # probabilities multiplied before a logarithm is taken; their product fits in float32
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
    def mean_saving(self) -> Floats:
        """The share of a frame's own code that each screen saves, on average, float64 [screens].

        The first frame of a screen does not count: the screen is made of it.
        """
        mean: Floats = self.saved / np.maximum(self.frames - 1, 1)
        return mean

    def save_enough(self, savings: Floats, share: float) -> NDArray[np.bool_]:
        """Whether each screen saves at least this share of what it usually saves, bool [screens].

        Args:
            savings: the share of a frame's own code that each screen saves, float64 [screens].
            share: the share of that.
        """
        enough: NDArray[np.bool_] = savings >= share * self.mean_saving
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


NEW_TASK_FROM = 0.75  # fraction of unknown frames that makes a task of them
PRESENT_TASK_UP_TO = 0.5  # fraction of unknown frames that leaves them with the present task
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
        fitting = np.where(screens.save_enough(savings, config.usual), likelihoods, -np.inf)
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
        if unknown >= NEW_TASK_FROM:
            task = self._open()
        elif (
            unknown <= PRESENT_TASK_UP_TO and not is_unknown
        ):  # or else this may be the first of a new task
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
            fits = self._screens.save_enough(1 - likelihoods / own_code, self._config.usual)
            if fits.any():  # otherwise the nearest screen is still the best guess
                likelihoods = np.where(fits, likelihoods, -np.inf)
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
