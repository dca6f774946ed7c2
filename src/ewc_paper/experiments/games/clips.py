"""Clips of the agents at play: a GIF a game, the arms side by side."""

import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ewc_paper.experiments.games.data import Network
from ewc_paper.figures.names import ARMS
from ewc_paper.runs.files import replace_file

SIDE = 168  # pixels, about; frames are enlarged by a whole number
CAPTION = 14
MILLISECONDS = 70  # an agent step lasts four frames of a sixtieth of a second

Frames = NDArray[np.uint8]  # [t, height, width]


def draw_clips(networks: Sequence[Network], directory: Path) -> list[Path]:
    """One GIF a game, from the clips of the first network of each arm that has one."""
    clips: dict[str, dict[str, Frames]] = defaultdict(dict)
    for network in networks:
        for file in sorted(network.path.glob("clips/*.npz")):
            if network.arm not in clips[file.stem]:
                clips[file.stem][network.arm] = np.load(file)["frames"]
    return [_write(directory / f"{game}.gif", arms) for game, arms in sorted(clips.items())]


def _write(file: Path, arms: dict[str, Frames]) -> Path:
    """An episode that is over stands still until the longest is."""
    length = max(len(frames) for frames in arms.values())
    pictures = [
        _side_by_side({arm: frames[min(step, len(frames) - 1)] for arm, frames in arms.items()})
        for step in range(length)
    ]
    content = io.BytesIO()
    look = {"save_all": True, "append_images": pictures[1:], "duration": MILLISECONDS, "loop": 0}
    pictures[0].save(content, "GIF", **look)
    return replace_file(file, content.getvalue())


def _side_by_side(frames: dict[str, Frames]) -> Image.Image:
    factor = max(1, SIDE // next(iter(frames.values())).shape[-1])
    height, width = (factor * side for side in next(iter(frames.values())).shape[-2:])
    picture = Image.new("L", (len(frames) * (width + 4) - 4, height + CAPTION), 40)
    draw = ImageDraw.Draw(picture)
    for number, (arm, frame) in enumerate(frames.items()):
        left = number * (width + 4)
        enlarged = frame.repeat(factor, 0).repeat(factor, 1)
        picture.paste(Image.fromarray(enlarged), (left, CAPTION))
        draw.text((left + 3, 1), ARMS[arm], fill=230)
    return picture
