"""A game as the agent sees it, and the one place that makes a game from its name.

A frame is a uint8 array [channels, height, width] with values from 0 to 255. An agent step is one
decision. A game is a deterministic function of the seed of its reset and the actions since, so a
running episode is saved as a list of actions.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]


class Step(NamedTuple):
    """What one agent step leads to; the frame is a new array."""

    frame: Frame
    reward: float  # raw, never clipped
    terminal: bool  # the game is over
    cut: bool  # it is not over, but the time limit is reached


class Game(Protocol):
    """One copy of a game. After `terminal` or `cut` it must be reset before the next step."""

    frame_shape: tuple[int, int, int]
    num_actions: int

    def reset(self, seed: int) -> Frame:
        """Begin the episode that belongs to `seed` (0 ≤ seed < 2³²) and return its first frame."""
        ...

    def step(self, action: int) -> Step: ...


def check_name(name: str) -> None:
    """Raise ValueError unless a game is called `name`; much faster than to make one."""
    if name.startswith("minatar/"):
        from ewc_paper.games.worlds.minatar import parse

        parse(name)
    else:
        from ewc_paper.games.worlds.atari import rom_of

        rom_of(name)


def file_name(name: str) -> str:
    """The game's name as a part of file names."""
    return name.replace("/", "-").replace(":", "-")


def frame_shape(name: str, size: int) -> tuple[int, int, int]:
    """The shape of a frame of the game called `name`, without making one."""
    if name.startswith("minatar/"):
        from ewc_paper.games.worlds.minatar import MinAtar

        return MinAtar.frame_shape
    return 1, size, size


def make_game(name: str, size: int = 84, max_steps: int = 27_000) -> Game:
    """The game called `name`: an Atari game such as "Pong", or a MinAtar task (see `minatar`).

    `size` is the side of an Atari frame; a MinAtar frame is always 10x10. An episode is cut after
    `max_steps` agent steps; the default is the usual 30 minutes of Atari.
    """
    # Imported here because each world needs an extra, and `Step` from above.
    if name.startswith("minatar/"):
        from ewc_paper.games.worlds.minatar import MinAtar

        return MinAtar(name, max_steps)
    from ewc_paper.games.worlds.atari import Atari

    return Atari(name, size, max_steps)
