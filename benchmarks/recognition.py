"""How well recognizers tell games apart that are visited in turn, on recorded frames.

A task belongs to the game that was played in most of its observations. When tasks were merged, all
their observations count for the one that is left.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.recorded_frames import COPIES, Frames


class Recognizer(Protocol):
    """What is measured; one that merges tasks has the attribute `merged` too."""

    def observe(self, frame: NDArray[np.uint8]) -> int: ...


class Visit(NamedTuple):
    """Tasks that a recognizer reported while one game was played, observation by observation."""

    game: str
    tasks: list[int]


@dataclass
class Outcome:
    """What a recognizer made of a run of visits.

    Attributes:
        right: by game, the share of observations in a task that belongs to the game.
        tasks: by game, the tasks at the end that belong to it.
        delays: agent steps of each visit before the first that is right, all if none is. The first
            visit follows no switch and is left out.
        confusions: observations of (game, game that the task belongs to) that were wrong.
        milliseconds: mean time per observation.
        opened: tasks ever opened per game.
    """

    right: dict[str, float]
    tasks: Counter[str]
    delays: list[tuple[str, int]]
    confusions: Counter[tuple[str, str]]
    milliseconds: float = 0.0
    opened: float = 0.0


@dataclass
class Log:
    """The visits of a run, and the tasks that were merged during it."""

    visits: list[Visit] = field(default_factory=list)
    merged: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0


def run(recognizer: Recognizer, visits: Iterable[tuple[str, Frames]]) -> Log:
    """Show the frames of visits one after another."""
    log = Log()
    for game, frames in visits:
        tasks = []
        start = time.thread_time()
        for frame in frames:
            tasks.append(recognizer.observe(frame))
            log.merged.update(getattr(recognizer, "merged", ()))
        log.seconds += time.thread_time() - start
        log.visits.append(Visit(game, tasks))
    return log


def judge(log: Log) -> Outcome:
    """Compare the reported tasks with the games."""
    visits = [(game, [_last(task, log.merged) for task in tasks]) for game, tasks in log.visits]
    games_of: dict[int, Counter[str]] = defaultdict(Counter)
    for game, tasks in visits:
        for task, observations in Counter(tasks).items():
            games_of[task][game] += observations
    game_of = {task: games.most_common(1)[0][0] for task, games in games_of.items()}
    total, right = Counter[str](), Counter[str]()
    confusions = Counter[tuple[str, str]]()
    for game, tasks in visits:
        total[game] += len(tasks)
        for task, observations in Counter(tasks).items():
            if game_of[task] == game:
                right[game] += observations
            else:
                confusions[game, game_of[task]] += observations
    observations = total.total()
    return Outcome(
        {game: right[game] / total[game] for game in total},
        Counter(game_of.values()),
        [(game, _delay([game_of[task] == game for task in tasks])) for game, tasks in visits[1:]],
        confusions,
        1e3 * log.seconds / observations,
        len({task for _, tasks in log.visits for task in tasks}) / len(total),
    )


def _last(task: int, merged: dict[int, int]) -> int:
    while task in merged:
        task = merged[task]
    return task


def _delay(right: Sequence[bool]) -> int:
    return COPIES * (right.index(True) if True in right else len(right))


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line on runs of one kind; every game of every run counts the same."""
    right = [(share, game) for one in outcomes for game, share in one.right.items()]
    per_game = sum(one.tasks.total() for one in outcomes) / len(right)
    delays = [delay for one in outcomes for _, delay in one.delays]
    confusions = sum((one.confusions for one in outcomes), Counter[tuple[str, str]]())
    many = max((tasks, game) for one in outcomes for game, tasks in one.tasks.items())
    worst, pair = min(right), confusions.most_common(1)[0]
    lost = sum(share < 0.5 for share, _ in right)
    return (
        f"right {100 * np.mean([share for share, _ in right]):.2f} % | contexts per game "
        f"{per_game:.2f} (ever {np.mean([one.opened for one in outcomes]):.2f}) | delay "
        f"{np.mean(delays):.1f} | ms {np.mean([one.milliseconds for one in outcomes]):.2f} | "
        f"below half: {lost} of {len(right)} | worst game {worst[1]} {100 * worst[0]:.1f} % | "
        f"worst pair {pair[0][0]} taken for {pair[0][1]} {pair[1]} | most contexts "
        f"{many[1]} {many[0]}"
    )
