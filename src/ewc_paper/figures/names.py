"""Labels of methods, arms, tasks and games in tables, figures and progress lines."""

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ewc_paper.games import arms

T = TypeVar("T")

# One label per method in `mnist.config.METHODS`, and one for a network that learns one task alone.
METHOD_LABELS = {
    "ewc": "EWC",
    "l2": "L2",
    "sgd": "SGD",
    "dropout": "SGD + dropout",
    "joint": "joint",
    "single": "single task",
}

# One label per arm of the experiment `games`.
ARM_LABELS = {name: arm.title for name, arm in arms.ARMS.items()}


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
