"""Several copies of one game, stepped together and restarted by themselves.

Episode n of copy i begins with a seed derived from (seed, i, n), so the copies are independent, and
all that must be saved of a running episode is its number and its actions.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ewc_paper.games.worlds.game import make_game


class Outcome(NamedTuple):
    """What one step of all copies led to; arrays are [count]."""

    rewards: NDArray[np.float32]  # raw
    terminal: NDArray[np.bool_]
    cut: NDArray[np.bool_]
    scores: list[float]  # total rewards of the episodes that ended in this step


class Environments:
    """`count` copies of the game `name`.

    frames: what the agent sees now, uint8 [count, channels, height, width]; overwritten by the next
        step. Where an episode has just ended, it is the first frame of the next.
    fresh: whether that frame is the first of an episode, bool [count]; overwritten likewise.
    """

    def __init__(self, name: str, count: int, *, seed: int, size: int, max_steps: int) -> None:
        self._games = [make_game(name, size, max_steps) for _ in range(count)]
        self._seed = seed
        self.frame_shape = self._games[0].frame_shape
        self.num_actions = self._games[0].num_actions
        self.frames = np.empty((count, *self.frame_shape), dtype=np.uint8)
        self.fresh = np.ones(count, dtype=np.bool_)
        self._scores = [0.0] * count
        self._episodes = [0] * count
        self._actions: list[list[int]] = [[] for _ in range(count)]
        for copy in range(count):
            self._begin(copy, episode=0)

    def step(self, actions: NDArray[np.int64]) -> Outcome:
        """Take one action in every copy."""
        chosen = self._checked(actions.tolist())
        rewards, terminals, cuts, scores = [], [], [], []
        for copy, action in enumerate(chosen):
            reward, terminal, cut = self._act(copy, action)
            rewards.append(reward)
            terminals.append(terminal)
            cuts.append(cut)
            if terminal or cut:
                scores.append(self._scores[copy])
                self._begin(copy, self._episodes[copy] + 1)
        return Outcome(
            np.array(rewards, dtype=np.float32), np.array(terminals), np.array(cuts), scores
        )

    def state_dict(self) -> dict[str, Any]:
        """Each copy's episode number and the actions since its beginning, as plain values."""
        return {
            "episodes": list(self._episodes),
            "actions": [list(actions) for actions in self._actions],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play the saved episodes again up to where they were."""
        if not len(state["episodes"]) == len(state["actions"]) == len(self._games):
            raise ValueError(
                f"expected the episodes of {len(self._games)} copies, got those of "
                f"{len(state['episodes'])}; make as many copies as were saved"
            )
        for copy, (episode, actions) in enumerate(
            zip(state["episodes"], state["actions"], strict=True)
        ):
            self._begin(copy, episode)
            for action in actions:
                self._act(copy, action)

    def _begin(self, copy: int, episode: int) -> None:
        seed = np.random.SeedSequence((self._seed, copy, episode)).generate_state(1)
        self.frames[copy] = self._games[copy].reset(int(seed[0]))
        self.fresh[copy] = True
        self._scores[copy] = 0.0
        self._episodes[copy] = episode
        self._actions[copy] = []

    def _act(self, copy: int, action: int) -> tuple[float, bool, bool]:
        frame, reward, terminal, cut = self._games[copy].step(action)
        self.frames[copy] = frame
        self.fresh[copy] = False
        self._scores[copy] += reward
        self._actions[copy].append(action)
        return reward, terminal, cut

    def _checked(self, actions: list[int]) -> list[int]:
        legal = len(actions) == len(self._games) and 0 <= min(actions) <= max(actions)
        if not (legal and max(actions) < self.num_actions):
            raise ValueError(
                f"expected {len(self._games)} actions from 0 to {self.num_actions - 1}, "
                f"got {actions}"
            )
        return actions
