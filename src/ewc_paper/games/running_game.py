"""Copies of one game in play, with the states that an agent sees of them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ewc_paper.games.frame_stacks import FrameStacks
from ewc_paper.games.worlds.environments import Environments, VectorStep
from ewc_paper.games.worlds.game import Frame


class RunningGame:
    """Copies of one game that are played in step: a row is one step of all copies.

    Args:
        name: the game, as `make_game` takes it.
        copies: number of copies.
        seed: where all randomness of the episodes comes from.
        size: height and width of an Atari frame.
        max_episode_steps: agent steps after which an episode is truncated.
        history: frames per state.
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
    ) -> None:
        self._environments = Environments(
            name, copies, seed=seed, size=size, max_episode_steps=max_episode_steps
        )
        self._stacks = FrameStacks(copies, self.frame_shape, history)
        self._stacks.push(self.frames, self.is_first)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        return self._environments.frame_shape

    @property
    def num_actions(self) -> int:
        return self._environments.num_actions

    @property
    def frames(self) -> NDArray[np.uint8]:
        """The present frame of each copy; overwritten by the next step."""
        return self._environments.frames

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """Whether the present frame of each copy starts an episode; overwritten likewise."""
        return self._environments.is_first

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
        step = self._environments.step(actions)
        self._stacks.push(self.frames, self.is_first)
        return step

    def state_dict(self) -> dict[str, Any]:
        return {
            "environments": self._environments.state_dict(),
            "states": torch.tensor(self.states),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of the same game with the same seed."""
        self._environments.load_state_dict(state["environments"])
        self._stacks.states[:] = state["states"].numpy()
