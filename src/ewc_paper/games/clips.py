"""Clips of the agent at play, stored as arrays for the figures."""

from pathlib import Path

import numpy as np

from ewc_paper.games.worlds.game import Frame, file_name

CLIP_FRAMES = 900  # longest clip


def write_clip(directory: Path, game: str, frames: list[Frame]) -> None:
    """Store the first frames of an episode as grayscale images, in `clips/<game>.npz`.

    Args:
        directory: the directory of the network that plays.
        game: the name of the game.
        frames: of several channels, each pixel shows the last one that is lit.
    """
    stacked = np.stack(frames[:CLIP_FRAMES])
    brightness = np.linspace(255 / stacked.shape[1], 255, stacked.shape[1]) / 255
    images = (stacked * brightness[:, None, None]).max(1).astype(np.uint8)
    folder = directory / "clips"
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / f"{file_name(game)}.npz", frames=images)
