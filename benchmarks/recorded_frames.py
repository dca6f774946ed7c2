"""Frames that recognizers are measured on: recorded once, then read from disk.

A visit to a game is a number of agent steps of four copies, of which a recognizer sees one frame
per row of steps, of each copy in turn (see `RunningGame.frame_in_turn`). There are three players:

- `random` draws every action uniformly.
- `persistent` repeats the action of each copy, and draws another with probability 1/20 per step. It
  gets further in many games.
- `trained` is the network of a run of `games` that was trained on the game alone. One action in
  twenty is random.
"""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ewc_paper.experiments.recognition.learner import Player
from ewc_paper.games.running_game import RunningGame
from ewc_paper.seeding import derive_seed

Frames = NDArray[np.uint8]

COPIES, SIZE, MAX_EPISODE_STEPS = 4, 42, 27_000
REDRAW = {"random": 1.0, "persistent": 0.05}  # by player: probability of another action per step
TRAINED = "trained"
PLAYERS = (*REDRAW, TRAINED)


class PlaysCopies(Protocol):
    """A player of copies of one game."""

    game: RunningGame

    def step(self) -> None:
        """Take one action in each copy."""


class RecordedFrames:
    """Visits of one player to games, kept as files of uint8 [observations, size, size].

    Args:
        folder: where the files are.
        player: one of PLAYERS.
        agents: for trained players, the run directory of `games` that has their networks.
    """

    def __init__(self, folder: Path, player: str, agents: Path | None = None) -> None:
        self.folder, self.player, self.agents = folder / player, player, agents

    def visit(self, game: str, number: int, agent_steps: int) -> Frames:
        """Return the frames of a visit, which is played if it has not been recorded yet."""
        file = self.folder / f"{game}-{agent_steps}-{number}.npy"
        if not file.exists():
            seed = derive_seed(0, self.player, game, agent_steps, number)
            frames = record(self._make_player(game, seed), agent_steps // COPIES)
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(".unfinished.npy")
            np.save(unfinished, frames)
            unfinished.rename(file)
        frames_of_visit: Frames = np.load(file)
        return frames_of_visit

    def _make_player(self, game: str, seed: int) -> PlaysCopies:
        if self.player == TRAINED:
            return trained_player(game, seed, self.agents)
        return RedrawingPlayer(game, seed, REDRAW[self.player])


def trained_player(game: str, seed: int, agents: Path | None) -> Player:
    """Return the network that was trained on this game alone, as a player of copies of it."""
    options = {
        "agents": str(agents) if agents else None,
        "environments": COPIES,
        "max_episode_steps": MAX_EPISODE_STEPS,
        "epsilon": 0.05,
        "size": SIZE,
    }
    player = Player(options, game, seed)
    size = player.game.frames.shape[-1]
    if player.agent is None or size != SIZE:
        raise ValueError(f"expected a network trained on frames of {SIZE}x{SIZE}, got {agents}")
    return player


class RedrawingPlayer:
    """Repeats the action of each copy, and draws another with a given probability per step.

    Args:
        game: the name of an Atari game.
        seed: where all randomness comes from.
        redraw: the probability.
    """

    def __init__(self, game: str, seed: int, redraw: float) -> None:
        self.game = RunningGame(
            game, COPIES, seed=seed, size=SIZE, max_episode_steps=MAX_EPISODE_STEPS, history=1
        )
        self._random = np.random.default_rng(derive_seed(seed, "actions"))
        self._redraw = redraw
        self._actions = self._drawn()

    def _drawn(self) -> NDArray[np.int64]:
        return self._random.integers(0, self.game.num_actions, COPIES)

    def step(self) -> None:
        """Take one action in each copy."""
        drawn = self._drawn()
        self._actions = np.where(self._random.random(COPIES) < self._redraw, drawn, self._actions)
        self.game.step(self._actions)


def record(player: PlaysCopies, rows: int) -> Frames:
    """Play copies of a game and return the frame in turn of every row of steps."""
    frames = np.empty((rows, SIZE, SIZE), dtype=np.uint8)
    for row in range(rows):
        frames[row] = player.game.frame_in_turn(row)[0]
        player.step()
    return frames
