"""Films of agents at play: the pictures of each in one PNG, as small as the page needs it.

films.js shows one picture after another; there are no videos to decode and none that cannot be
paused.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ewc_paper.figures.panel import Film

LONGEST = 300  # pictures of a film, 21 seconds of Atari


@dataclass(frozen=True)
class Sheet:
    """A film as one picture: `frames` pictures of `width` by `height` pixels, row by row."""

    label: str
    png: bytes
    width: int
    height: int
    columns: int
    frames: int
    milliseconds: int


def sheets(films: Sequence[Film], budget: int) -> list[Sheet]:
    """Return films that need at most `budget` bytes; nothing if even one picture each is too much.

    To save bytes, only every second, fourth, ... picture is kept and shown for longer.
    """
    stride = 1
    while films:
        found = [_sheet(film, stride) for film in films]
        if sum(len(one.png) for one in found) <= budget:
            return found
        if stride > LONGEST:
            break
        stride *= 2
    return []


def _sheet(film: Film, stride: int) -> Sheet:
    frames = film.frames[:LONGEST:stride]
    count, height, width = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    grid = np.zeros((rows * columns, height, width), np.uint8)
    grid[:count] = frames
    tiled = grid.reshape(rows, columns, height, width).swapaxes(1, 2)
    content = io.BytesIO()
    Image.fromarray(tiled.reshape(rows * height, columns * width)).save(
        content, "PNG", optimize=True
    )
    milliseconds = film.milliseconds * stride
    return Sheet(film.label, content.getvalue(), width, height, columns, count, milliseconds)
