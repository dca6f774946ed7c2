"""Games as the agent sees them: one game, several copies in step, and the states it is shown.

`make_game` makes a game from its name. `Environments` steps several copies of it together, and
`RunningGame` adds the states, which are stacks of frames (`FrameStacks`).

A frame is a uint8 array [channels, height, width] with values from 0 to 255. An agent step is one
decision. A game is a deterministic function of the seed of its reset and the actions since then, so
a running episode can be saved as a list of actions.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
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


def make_game(
    name: str, size: int = 84, max_episode_steps: int = 27_000, sticky: float = 0.0
) -> Game:
    """Make one copy of a game.

    Args:
        name: an Atari game such as "Pong", or a MinAtar task (see `minatar`).
        size: height and width of an Atari frame; a MinAtar frame always has 10x10 pixels.
        max_episode_steps: agent steps after which an episode is truncated; the default is the usual
            30 minutes of Atari.
        sticky: probability that a frame of Atari takes the action of the frame before. MinAtar has
            sticky actions of its own.
    """
    # Imported here because each world needs an extra, and imports `GameStep` from above.
    if name.startswith("minatar/"):
        from ewc_paper.games.worlds.minatar import MinAtar

        return MinAtar(name, max_episode_steps)
    from ewc_paper.games.worlds.atari import Atari

    return Atari(name, size, max_episode_steps, sticky)


class VectorStep(NamedTuple):
    """The result of one step of all copies; arrays are [copies]."""

    rewards: NDArray[np.float32]  # raw, never clipped
    terminal: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    scores: list[float]  # total rewards of the episodes that ended in this step


class Environments:
    """Copies of one game that are stepped together; each restarts when its episode ends.

    Episode n of copy i starts from a seed derived from (seed, i, n). The copies are therefore
    independent, and a running episode is saved as its number and its actions.

    Args:
        name: the game, as `make_game` takes it.
        copies: number of copies.
        seed: where all randomness of the episodes comes from.
        size: height and width of an Atari frame.
        max_episode_steps: agent steps after which an episode is truncated.
        sticky: see `make_game`.

    Attributes:
        frames: what the agent sees now, uint8 [copies, channels, height, width]. Where an episode
            has just ended, this is the first frame of the next one. Overwritten by the next step.
        is_first: whether that frame is the first of an episode, bool [copies]. Overwritten too.
    """

    def __init__(
        self,
        name: str,
        copies: int,
        *,
        seed: int,
        size: int,
        max_episode_steps: int,
        sticky: float = 0.0,
    ) -> None:
        self._games = [make_game(name, size, max_episode_steps, sticky) for _ in range(copies)]
        self._seed = seed
        self.frame_shape = self._games[0].frame_shape
        self.num_actions = self._games[0].num_actions
        self.frames = np.empty((copies, *self.frame_shape), dtype=np.uint8)
        self.is_first = np.ones(copies, dtype=np.bool_)
        self._scores = [0.0] * copies
        self._episodes = [0] * copies
        self._actions: list[list[int]] = [[] for _ in range(copies)]
        for copy in range(copies):
            self._start_episode(copy, episode=0)

    def step(self, actions: NDArray[np.int64]) -> VectorStep:
        """Take one action in each copy."""
        checked = self._checked(actions.tolist())
        rewards, terminals, truncations, scores = [], [], [], []
        for copy, action in enumerate(checked):
            reward, terminal, truncated = self._act(copy, action)
            rewards.append(reward)
            terminals.append(terminal)
            truncations.append(truncated)
            if terminal or truncated:
                scores.append(self._scores[copy])
                self._start_episode(copy, self._episodes[copy] + 1)
        return VectorStep(
            np.array(rewards, dtype=np.float32), np.array(terminals), np.array(truncations), scores
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the episode number of each copy and its actions so far, as plain values."""
        return {
            "episodes": list(self._episodes),
            "actions": [list(actions) for actions in self._actions],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replay the saved episodes up to where they were."""
        if not len(state["episodes"]) == len(state["actions"]) == len(self._games):
            raise ValueError(
                f"expected the episodes of {len(self._games)} copies, got those of "
                f"{len(state['episodes'])}; make as many copies as were saved"
            )
        for copy, (episode, actions) in enumerate(
            zip(state["episodes"], state["actions"], strict=True)
        ):
            self._start_episode(copy, episode)
            for action in actions:
                self._act(copy, action)

    def _start_episode(self, copy: int, episode: int) -> None:
        seed = np.random.SeedSequence((self._seed, copy, episode)).generate_state(1)
        self.frames[copy] = self._games[copy].reset(int(seed[0]))
        self.is_first[copy] = True
        self._scores[copy] = 0.0
        self._episodes[copy] = episode
        self._actions[copy] = []

    def _act(self, copy: int, action: int) -> tuple[float, bool, bool]:
        frame, reward, terminal, truncated = self._games[copy].step(action)
        self.frames[copy] = frame
        self.is_first[copy] = False
        self._scores[copy] += reward
        self._actions[copy].append(action)
        return reward, terminal, truncated

    def _checked(self, actions: list[int]) -> list[int]:
        valid = len(actions) == len(self._games) and 0 <= min(actions) <= max(actions)
        if not (valid and max(actions) < self.num_actions):
            raise ValueError(
                f"expected {len(self._games)} actions from 0 to {self.num_actions - 1}, "
                f"got {actions}"
            )
        return actions


class FrameStacks:
    """The states of several copies: the last `history` frames of each, the newest last.

    Args:
        copies: number of copies.
        frame_shape: channels, height and width of a frame.
        history: frames per state. Frames from before the start of an episode are zero.

    Attributes:
        states: uint8 [copies, history * channels, height, width].
    """

    def __init__(self, copies: int, frame_shape: tuple[int, ...], history: int) -> None:
        channels, *sides = frame_shape
        self._channels = channels
        self.states = np.zeros((copies, history * channels, *sides), np.uint8)

    def push(self, frames: NDArray[np.uint8], is_first: NDArray[np.bool_]) -> None:
        """Add one frame per copy; a copy whose frame is the first of an episode is cleared."""
        self.states[is_first] = 0
        self.push_some(np.arange(len(frames)), frames)

    def push_some(self, copies: NDArray[np.int64], frames: NDArray[np.uint8]) -> None:
        """Add one frame to each of these copies, and none to the others."""
        self.states[copies, : -self._channels] = self.states[copies, self._channels :]
        self.states[copies, -self._channels :] = frames

    def newest(self, copy: int) -> NDArray[np.uint8]:
        """Return the last frame of a copy, as a view."""
        return self.states[copy, -self._channels :]


class RunningGame(Environments):
    """Copies of one game with the states that an agent sees: a row is one step of all copies.

    Args:
        name: the game, as `make_game` takes it.
        copies: number of copies.
        seed: where all randomness of the episodes comes from.
        size: height and width of an Atari frame.
        max_episode_steps: agent steps after which an episode is truncated.
        history: frames per state.
        sticky: see `make_game`.
    """

    def __init__(
        self,
        name: str,
        copies: int,
        *,
        seed: int,
        size: int,
        max_episode_steps: int,
        history: int,
        sticky: float = 0.0,
    ) -> None:
        super().__init__(
            name, copies, seed=seed, size=size, max_episode_steps=max_episode_steps, sticky=sticky
        )
        self._stacks = FrameStacks(copies, self.frame_shape, history)
        self._stacks.push(self.frames, self.is_first)

    @property
    def states(self) -> NDArray[np.uint8]:
        """The stacked frames of each copy; overwritten by the next step."""
        return self._stacks.states

    def frame_in_turn(self, row: int) -> Frame:
        """Return the frame that a recognizer sees in this row: one copy's, each in turn.

        With four copies this is every fourth agent step, as in the paper.
        """
        frame: Frame = self.frames[row % len(self.frames)]
        return frame

    def step(self, actions: NDArray[np.int64]) -> VectorStep:
        """Take one action in each copy."""
        step = super().step(actions)
        self._stacks.push(self.frames, self.is_first)
        return step

    def state_dict(self) -> dict[str, Any]:
        return {"environments": super().state_dict(), "states": torch.tensor(self.states)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same game with the same seed."""
        super().load_state_dict(state["environments"])
        self._stacks.states[:] = state["states"].numpy()
