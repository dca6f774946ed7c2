"""What methods, tasks and games are called in tables, figures and lines of progress."""

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ewc_paper.games import arms

T = TypeVar("T")

METHODS = {
    "ewc": "EWC",
    "l2": "L2",
    "sgd": "SGD",
    "dropout": "SGD + dropout",
    "joint": "joint",
    "single": "single task",
}

ARMS = {name: arm.title for name, arm in arms.ARMS.items()}


def in_order(found: Mapping[str, T], order: Iterable[str]) -> dict[str, T]:
    """What was found, in the order that the options name it; what they do not name comes last."""
    names = [name for name in order if name in found]
    return {name: found[name] for name in (*names, *found)}


def task_name(task: int) -> str:
    """A, B, ... Z for the first tasks, then numbers."""
    return chr(ord("A") + task) if task < 26 else str(task + 1)


def game_name(game: str) -> str:
    """`Crazy Climber` or, for minatar/breakout:rotate90,actions1, `breakout 90° a1`."""
    if game.startswith("minatar/"):
        short = re.sub(r"rotate(\d+)", r"\1°", game.removeprefix("minatar/"))
        short = re.sub(r"(a)ctions(\d)|(c)hannels(\d)", r"\1\2\3\4", short)
        return re.sub("[:_,]", " ", short)
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", game).replace("Up NDown", "Up'n Down")
