"""A clip shows every pixel of every channel, and is not too long."""

from pathlib import Path

import numpy as np

from ewc_paper.games.clips import CLIP_FRAMES, write_clip


def read_clip(file: Path) -> np.ndarray:
    with np.load(file) as stored:
        return stored["frames"]


def test_a_clip_keeps_every_pixel_that_was_lit(tmp_path: Path) -> None:
    frames = [np.zeros((2, 3, 3), np.uint8) for _ in range(4)]
    frames[1][0, 0, 0] = 255
    frames[2][1, 1, 1] = 255
    write_clip(tmp_path, "minatar/breakout:rotate90", frames)
    clip = read_clip(tmp_path / "clips" / "minatar-breakout-rotate90.npz")
    assert clip.shape == (4, 3, 3)
    assert clip.dtype == np.uint8
    assert np.argwhere(clip).tolist() == [[1, 0, 0], [2, 1, 1]]
    assert clip[2, 1, 1] == 255


def test_a_long_episode_is_shortened(tmp_path: Path) -> None:
    write_clip(tmp_path, "Pong", [np.zeros((1, 2, 2), np.uint8)] * (CLIP_FRAMES + 5))
    assert len(read_clip(tmp_path / "clips" / "Pong.npz")) == CLIP_FRAMES
