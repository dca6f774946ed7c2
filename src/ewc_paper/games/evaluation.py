"""Tests without learning: scores of whole episodes, and how far the network has drifted.

Drift is measured on states stored when a game was last left, with the values the network gave them
then: *agreement* is the share of states in which the greedy action is still the same, *regret* what
the greedy action of now was worth less, by the values of then.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ewc_paper.games.agent import Agent
from ewc_paper.games.config import Settings
from ewc_paper.games.replay import Replay
from ewc_paper.games.scores import normalized
from ewc_paper.games.worlds.game import Game, file_name, make_game
from ewc_paper.seeding import derive_seed

Recognize = Callable[[NDArray[np.uint8]], int]
CLIP_FRAMES = 900
LANDMARK_STATES = 256


class Played(NamedTuple):
    """The scores of the episodes, and the frames of the first of them."""

    scores: list[float]
    frames: list[NDArray[np.uint8]]


def play(
    agent: Agent, games: list[Game], recognize: Recognize, *, epsilon: float, seed: int
) -> Played:
    """One episode of each copy of a game, all at once; the agent learns nothing."""
    random = np.random.default_rng(derive_seed(seed, "test actions"))
    starts = [derive_seed(seed, "test", number) % 2**32 for number in range(len(games))]
    first = [game.reset(start) for game, start in zip(games, starts, strict=True)]
    stacks = FrameStacks(len(games), first[0].shape, agent.settings.history)
    stacks.push(np.stack(first), fresh=np.ones(len(games), bool))
    scores = np.zeros(len(games))
    alive = np.arange(len(games))
    shown = [first[0]]
    context = agent.context
    while len(alive):
        agent.show(recognize(stacks.newest(int(alive[0]))))
        actions = agent.act(stacks.states[alive], epsilon, random)
        chosen = zip(alive, actions, strict=True)
        steps = [games[number].step(int(action)) for number, action in chosen]
        scores[alive] += [step.reward for step in steps]
        stacks.push_some(alive, np.stack([step.frame for step in steps]))
        if alive[0] == 0:
            shown.append(steps[0].frame)
        alive = alive[[not (step.terminal or step.cut) for step in steps]]
    agent.show(context)
    return Played(scores.tolist(), shown)


class Examiner:
    """Tests an agent on all games; `directory` is where clips of it go."""

    def __init__(self, games: list[str], settings: Settings) -> None:
        self._games, self._settings = games, settings
        self._copies: dict[str, list[Game]] = {}
        self._landmarks: dict[str, Landmark] = {}
        self.directory: Path | None = None

    def test(
        self,
        agent: Agent,
        recognize_in: Callable[[str], Recognize],
        *,
        seed: int,
        segment: int,
        clips: bool,
    ) -> dict[str, Any]:
        """Scores and drift of each game, as a part of a row of measurements."""
        scores: dict[str, list[float]] = {}
        for game in self._games:
            played = play(
                agent,
                self._copies_of(game),
                recognize_in(game),
                epsilon=self._settings.test_epsilon,
                seed=derive_seed(seed, "test", segment, game),
            )
            scores[game] = played.scores
            if clips and self.directory is not None:
                write_clip(self.directory, game, played.frames)
        drift = {game: mark.drift(agent) for game, mark in self._landmarks.items()}
        return {
            "scores": scores,
            "normalized": {
                game: normalized(game, float(np.mean(values))) for game, values in scores.items()
            },
            "agreement": {game: agreement for game, (agreement, _) in drift.items()},
            "regret": {game: regret for game, (_, regret) in drift.items()},
        }

    def _copies_of(self, game: str) -> list[Game]:
        """As many copies as there are episodes; they are kept, since loading a game takes long."""
        if game not in self._copies:
            settings = self._settings
            self._copies[game] = [
                make_game(game, settings.size, settings.max_episode_steps)
                for _ in range(settings.test_episodes)
            ]
        return self._copies[game]

    def set_landmark(self, game: str, agent: Agent, replay: Replay) -> None:
        """Note what the states of a game are worth now that it is left."""
        self._landmarks[game] = Landmark.set_up(agent, replay.spread_states(LANDMARK_STATES))

    def state_dict(self) -> dict[str, Any]:
        return {game: mark._asdict() for game, mark in self._landmarks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._landmarks = {game: Landmark(**mark) for game, mark in state.items()}


class FrameStacks:
    """The last frames of several copies, as the states the network sees."""

    def __init__(self, copies: int, frame_shape: tuple[int, ...], history: int) -> None:
        channels, *sides = frame_shape
        self._channels = channels
        self.states = np.zeros((copies, history * channels, *sides), np.uint8)

    def push(self, frames: NDArray[np.uint8], fresh: NDArray[np.bool_]) -> None:
        """Take in a frame of every copy; one that starts an episode forgets those before."""
        self.states[fresh] = 0
        self.push_some(np.arange(len(frames)), frames)

    def push_some(self, copies: NDArray[np.int64], frames: NDArray[np.uint8]) -> None:
        """Take in a frame of these copies alone."""
        self.states[copies, : -self._channels] = self.states[copies, self._channels :]
        self.states[copies, -self._channels :] = frames

    def newest(self, copy: int) -> NDArray[np.uint8]:
        return self.states[copy, -self._channels :]


class Landmark(NamedTuple):
    """States of a game, and what they were worth when the game was last left."""

    states: Tensor  # [n, channels, height, width]
    values: Tensor  # [n, actions]
    context: int

    @staticmethod
    @torch.no_grad()
    def set_up(agent: Agent, states: NDArray[np.uint8]) -> "Landmark":
        tensor = torch.from_numpy(states)
        return Landmark(tensor, agent.network(tensor.to(agent.device)).cpu(), agent.context)

    @torch.no_grad()
    def drift(self, agent: Agent) -> tuple[float, float]:
        """(agreement, regret) of the network as it is now."""
        before = agent.context
        agent.show(self.context)
        chosen = agent.network(self.states.to(agent.device)).cpu().argmax(1, keepdim=True)
        agent.show(before)
        best, greedy = self.values.max(1, keepdim=True)
        agreement = (chosen == greedy).float().mean()
        regret = (best - self.values.gather(1, chosen)).mean()
        return float(agreement), float(regret)


def write_clip(directory: Path, game: str, frames: list[NDArray[np.uint8]]) -> None:
    """Store the first frames of an episode; of several channels each pixel shows the last lit."""
    stacked = np.stack(frames[:CLIP_FRAMES])
    brightness = np.linspace(255 / stacked.shape[1], 255, stacked.shape[1]) / 255
    shown = (stacked * brightness[:, None, None]).max(1).astype(np.uint8)
    folder = directory / "clips"
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / f"{file_name(game)}.npz", frames=shown)
