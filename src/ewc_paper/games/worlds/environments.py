"""Several copies of one game that are stepped together; each restarts when its episode ends.

Episode n of copy i starts from a seed derived from (seed, i, n). The copies are therefore
independent, and a running episode is saved as its number and its actions.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ewc_paper.games.worlds.game import make_game


class VectorStep(NamedTuple):
    """The result of one step of all copies; arrays are [copies]."""

    rewards: NDArray[np.float32]  # raw, never clipped
    terminal: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    scores: list[float]  # total rewards of the episodes that ended in this step


class Environments:
    """Copies of one game.

    Args:
        name: the game, as `make_game` takes it.
        copies: number of copies.
        seed: where all randomness of the episodes comes from.
        size: height and width of an Atari frame.
        max_episode_steps: agent steps after which an episode is truncated.

    Attributes:
        frames: what the agent sees now, uint8 [copies, channels, height, width]. Where an episode
            has just ended, this is the first frame of the next one. Overwritten by the next step.
        is_first: whether that frame is the first of an episode, bool [copies]. Overwritten too.
    """

    def __init__(
        self, name: str, copies: int, *, seed: int, size: int, max_episode_steps: int
    ) -> None:
        self._games = [make_game(name, size, max_episode_steps) for _ in range(copies)]
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
