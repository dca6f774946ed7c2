"""MinAtar's games under symmetries: many tasks of known difficulty; needs the extra `minatar`.

A task is named `minatar/<game>[:<symmetry>,actions<n>,channels<n>]`. Each part after the colon is
optional, and the parts come in this order:

    minatar/breakout
    minatar/breakout:rotate90
    minatar/asterix:mirror,actions1,channels2

The symmetry is one of the square (`SYMMETRIES`). The numbers select a random permutation of the 6
actions and of the 10 channels. A game with fewer channels is padded with empty ones.

The games are those of Young and Tian 2019: with probability 0.1 an action is replaced by the
previous one, and the difficulty grows during an episode. (Without the first, Breakout would have
two episodes and Space Invaders one.) All randomness comes from the seed of the reset.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ewc_paper.games.worlds.game import Frame, GameStep
from ewc_paper.terminal import shown

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
CHANNELS, SIDE, ACTIONS = 10, 10, 6

# The symmetries of the square, on its last two axes.
SYMMETRIES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "": lambda x: x,
    "rotate90": lambda x: np.rot90(x, 1, axes=(-2, -1)),  # counterclockwise
    "rotate180": lambda x: np.rot90(x, 2, axes=(-2, -1)),
    "rotate270": lambda x: np.rot90(x, 3, axes=(-2, -1)),
    "mirror": lambda x: x[..., :, ::-1],
    "flip": lambda x: x[..., ::-1, :],
    "transpose": lambda x: np.swapaxes(x, -2, -1),
    "antitranspose": lambda x: np.swapaxes(x[..., ::-1, ::-1], -2, -1),
}


@dataclass(frozen=True)
class MinAtarTask:
    """A game under a symmetry; permutation number 0 is the identity."""

    game: str
    symmetry: str = ""
    actions: int = 0
    channels: int = 0

    @property
    def action_order(self) -> list[int]:
        """For each action of the task, the action of the game."""
        order: list[int] = _permutation(ACTIONS, self.actions).tolist()
        return order

    @property
    def channel_order(self) -> NDArray[np.int64]:
        """For each channel of the task, the channel of the game."""
        return _permutation(CHANNELS, self.channels)

    def __str__(self) -> str:
        actions = f"actions{self.actions}" if self.actions else ""
        channels = f"channels{self.channels}" if self.channels else ""
        parts = ",".join(filter(None, [self.symmetry, actions, channels]))
        return f"minatar/{self.game}:{parts}".removesuffix(":")


def parse(name: str) -> MinAtarTask:
    """Return the task of this name; raise ValueError if there is none."""
    game, _, parts = name.removeprefix("minatar/").partition(":")
    fields: dict[str, Any] = {}
    for part in filter(None, parts.split(",")):
        if part in SYMMETRIES:
            fields["symmetry"] = part
        elif match := re.fullmatch(r"(actions|channels)(\d+)", part):
            fields[match[1]] = int(match[2])
    task = MinAtarTask(game, **fields)
    if game not in GAMES or str(task) != name:  # each task has exactly one name
        raise ValueError(
            f"no task is called {shown(name)}; expected "
            "minatar/<game>[:<symmetry>,actions<n>,channels<n>] in this order, "
            f"with a game of {', '.join(GAMES)} and a symmetry of {', '.join(SYMMETRIES)[2:]}"
        )
    return task


class MinAtar:
    """One copy of a MinAtar task."""

    frame_shape = (CHANNELS, SIDE, SIDE)
    num_actions = ACTIONS

    def __init__(self, name: str, max_episode_steps: int) -> None:
        task = parse(name)
        try:
            from minatar import Environment  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError(
                f"MinAtar games need an extra: pip install 'ewc-paper[minatar]' ({error})"
            ) from error
        self._environment = Environment(task.game)
        self._action_order = task.action_order
        self._max_episode_steps, self._agent_steps = max_episode_steps, 0
        # The game's state [height, width, channels], flattened, plus one zero used for padding.
        self._state = np.zeros(SIDE * SIDE * self._environment.n_channels + 1, dtype=np.uint8)
        self._source = _source(task, self._environment.n_channels)

    def reset(self, seed: int) -> Frame:
        self._agent_steps = 0
        self._environment.seed(seed)
        self._environment.reset()
        self._environment.last_action = 0  # the game's own reset does not change it
        return self._frame()

    def step(self, action: int) -> GameStep:
        reward, terminal = self._environment.act(self._action_order[action])
        self._agent_steps += 1
        truncated = not terminal and self._agent_steps >= self._max_episode_steps
        return GameStep(self._frame(), float(reward), bool(terminal), truncated)

    def _frame(self) -> Frame:
        self._state[:-1] = self._environment.state().reshape(-1)
        return self._state[self._source] * np.uint8(255)


def _permutation(length: int, number: int) -> NDArray[np.int64]:
    order = np.arange(length)
    return np.random.default_rng(number).permutation(order) if number else order


def _source(task: MinAtarTask, channels: int) -> NDArray[np.int64]:
    """For each pixel of the task's frame, its index in the game's flattened state."""
    pixels = np.arange(SIDE * SIDE * channels).reshape(SIDE, SIDE, channels).transpose(2, 0, 1)
    padded = np.full((CHANNELS, SIDE, SIDE), pixels.size)
    padded[:channels] = pixels
    return np.ascontiguousarray(SYMMETRIES[task.symmetry](padded)[task.channel_order])
