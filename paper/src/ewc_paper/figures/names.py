"""Words and numbers that people read in tables, figures and progress lines.

NaN stands for a network that diverged. It is left out of means, and tables say so.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ewc_paper.games.config import ARMS

T = TypeVar("T")

# One label per method in `mnist.config.METHODS`, and one for a network that learns one task alone.
METHOD_LABELS = {
    "kronecker": "EWC, Kronecker",
    "ewc": "EWC",
    "l2": "L2",
    "sgd": "SGD",
    "dropout": "SGD + dropout",
    "joint": "joint",
    "single": "single task",
}

# The same within a sentence.
SENTENCE_LABELS = {**METHOD_LABELS, "sgd": "plain SGD", "joint": "joint training"}

# One label per arm of the experiment `games`.
ARM_LABELS = {name: arm.title for name, arm in ARMS.items()}


def in_order(items: Mapping[str, T], order: Iterable[str]) -> dict[str, T]:
    """Sort items by their names as in `order`; items that are not in it come last."""
    names = [name for name in order if name in items]
    return {name: items[name] for name in (*names, *items)}


def task_name(task: int) -> str:
    """Return A, B, ... Z for the first 26 tasks, then numbers."""
    return chr(ord("A") + task) if task < 26 else str(task + 1)


def game_name(game: str) -> str:
    """Return a name to read.

    `CrazyClimber` becomes `Crazy Climber`; `minatar/breakout:rotate90,actions1` becomes
    `breakout 90° a1`.
    """
    if game.startswith("minatar/"):
        short = re.sub(r"rotate(\d+)", r"\1°", game.removeprefix("minatar/"))
        short = re.sub(r"(a)ctions(\d)|(c)hannels(\d)", r"\1\2\3\4", short)
        return re.sub("[:_,]", " ", short)
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", game).replace("Up NDown", "Up'n Down")


# What the marks after the name of a MinAtar game mean, by what is shown for them.
GAME_MARKS = {
    r" \d+°": "90°, 180°, 270°: the game with its screen turned",
    r" a\d": "a1, a2, ...: with its actions in another order",
    r" c\d": "c1, c2, ...: with the channels of its screen in another order",
}


def game_marks(games: Iterable[str]) -> list[str]:
    """Return the lines `mark: meaning` that the names of these games need."""
    names = [game_name(game) for game in games]
    return [
        line for mark, line in GAME_MARKS.items() if any(re.search(mark, name) for name in names)
    ]


def listed(strings: Sequence[str]) -> str:
    """Join strings as in a sentence: `A`, `A and B`, `A, B and C`."""
    if len(strings) < 2:
        return "".join(strings)
    return f"{', '.join(strings[:-1])} and {strings[-1]}"


def finite_mean(values: Iterable[float]) -> float | None:
    """Return the mean of the values that are finite; None if none is."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else None


def percent(values: Iterable[float]) -> str:
    """Format the mean of percentages for a sentence: `97.2 %`, or that all networks diverged."""
    mean = finite_mean(values)
    return "no result, as it diverged" if mean is None else f"{mean:.1f} %"


def mean_and_deviation(values: Sequence[float]) -> str:
    """Format one value per seed: `97.05 ± 0.03`, or the value alone if there is only one.

    Values that are not finite belong to networks that diverged; the text says how many there are.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "diverged"
    text = f"{np.mean(finite):.2f}"
    if len(finite) > 1:
        text += f" ± {np.std(finite, ddof=1):.2f}"
    diverged = len(values) - len(finite)
    return f"{text} ({diverged} of {len(values)} diverged)" if diverged else text
