"""Frames that recognizers are measured on: recorded once, then read from disk.

A visit to a game is a number of agent steps of four copies, of which a recognizer sees one frame
per row of steps, of each copy in turn (see `RunningGame.frame_in_turn`). There are two players:

- `random` draws every action uniformly.
- `persistent` repeats the action of each copy, and draws another with probability 1/20 per step. It
  gets further in many games and stands in for a trained player, of which none are stored.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ewc_paper.games.running_game import RunningGame
from ewc_paper.seeding import derive_seed

Frames = NDArray[np.uint8]

COPIES, SIZE, MAX_EPISODE_STEPS = 4, 42, 27_000
REDRAW = {"random": 1.0, "persistent": 0.05}  # by player: probability of another action per step


class RecordedFrames:
    """Visits of one player to games, kept as files of uint8 [observations, size, size].

    Args:
        folder: where the files are.
        player: one of REDRAW.
    """

    def __init__(self, folder: Path, player: str) -> None:
        self.folder, self.player = folder / player, player

    def visit(self, game: str, number: int, agent_steps: int) -> Frames:
        """Return the frames of a visit, which is played if it has not been recorded yet."""
        file = self.folder / f"{game}-{agent_steps}-{number}.npy"
        if not file.exists():
            seed = derive_seed(0, self.player, game, agent_steps, number)
            frames = record(game, agent_steps // COPIES, REDRAW[self.player], seed)
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(".unfinished.npy")
            np.save(unfinished, frames)
            unfinished.rename(file)
        frames_of_visit: Frames = np.load(file)
        return frames_of_visit


def record(game: str, rows: int, redraw: float, seed: int) -> Frames:
    """Play copies of a game and return the frame in turn of every row.

    Args:
        game: the name of an Atari game.
        rows: steps of all copies.
        redraw: probability per step that a copy draws another action.
        seed: where all randomness comes from.
    """
    running = RunningGame(
        game, COPIES, seed=seed, size=SIZE, max_episode_steps=MAX_EPISODE_STEPS, history=1
    )
    random = np.random.default_rng(derive_seed(seed, "actions"))
    frames = np.empty((rows, SIZE, SIZE), dtype=np.uint8)
    actions = random.integers(0, running.num_actions, COPIES)
    for row in range(rows):
        frames[row] = running.frame_in_turn(row)[0]
        drawn = random.integers(0, running.num_actions, COPIES)
        actions = np.where(random.random(COPIES) < redraw, drawn, actions)
        running.step(actions)
    return frames
