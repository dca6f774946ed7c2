"""A game as the agent sees it, and the function that makes a game from its name.

A frame is a uint8 array [channels, height, width] with values from 0 to 255. An agent step is one
decision. A game is a deterministic function of the seed of its reset and the actions since then, so
a running episode can be saved as a list of actions.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]


class GameStep(NamedTuple):
    """The result of one agent step; the frame is a new array."""

    frame: Frame
    reward: float  # raw, never clipped
    terminal: bool  # the game is over
    truncated: bool  # the game is not over, but the time limit is reached


class Game(Protocol):
    """One copy of a game. After a terminal or truncated step it must be reset."""

    frame_shape: tuple[int, int, int]
    num_actions: int

    def reset(self, seed: int) -> Frame:
        """Start the episode that belongs to `seed` (0 ≤ seed < 2³²) and return its first frame."""
        ...

    def step(self, action: int) -> GameStep: ...


def check_name(name: str) -> None:
    """Raise ValueError if no game has this name; much faster than making the game."""
    if name.startswith("minatar/"):
        from ewc_paper.games.worlds.minatar import parse

        parse(name)
    else:
        from ewc_paper.games.worlds.atari import rom_of

        rom_of(name)


def file_name(name: str) -> str:
    """Return the name of a game as a part of file names."""
    return name.replace("/", "-").replace(":", "-")


def frame_shape(name: str, size: int) -> tuple[int, int, int]:
    """Return the shape of the frames of a game; much faster than making the game."""
    if name.startswith("minatar/"):
        from ewc_paper.games.worlds.minatar import MinAtar

        return MinAtar.frame_shape
    return 1, size, size


def make_game(name: str, size: int = 84, max_episode_steps: int = 27_000) -> Game:
    """Make one copy of a game.

    Args:
        name: an Atari game such as "Pong", or a MinAtar task (see `minatar`).
        size: height and width of an Atari frame; a MinAtar frame always has 10x10 pixels.
        max_episode_steps: agent steps after which an episode is truncated; the default is the usual
            30 minutes of Atari.
    """
    # Imported here because each world needs an extra, and imports `GameStep` from above.
    if name.startswith("minatar/"):
        from ewc_paper.games.worlds.minatar import MinAtar

        return MinAtar(name, max_episode_steps)
    from ewc_paper.games.worlds.atari import Atari

    return Atari(name, size, max_episode_steps)
