"""Clips of the agents playing: before training, after a game's first visit, and at the end.

The page shows all of them as films; a GIF per game has those of the end, the arms side by side.
"""

import io
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ewc_paper.errors import RunError
from ewc_paper.experiments.games.data import Network
from ewc_paper.figures.names import ARM_LABELS, game_name
from ewc_paper.figures.panel import Film, Panel
from ewc_paper.games.evaluation import CLIP_FOLDERS, LAST, LEARNED, UNTRAINED
from ewc_paper.games.worlds.game import file_name
from ewc_paper.runs.files import replace_file

CLIP_FILES = "clips/**/*.npz"  # in the directory of a network
MOMENTS = {
    UNTRAINED: "before any training",
    LEARNED: "after its first visit",
    LAST: "at the end, after all games",
}
SIDE = 168  # width of a picture in pixels, about: frames are enlarged by a whole number
CAPTION_HEIGHT = 14
GAP = 4  # pixels between two pictures
MILLISECONDS = 70  # per picture: an agent step is four frames of 1/60 second

Frames = NDArray[np.uint8]  # (time, height, width)


def check_clip(file: Path) -> None:
    """Raise RunError if a file does not hold the frames of a clip."""
    try:
        frames = np.load(file)["frames"]
    except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"{file} is damaged: expected frames, got {error}") from error
    if frames.ndim != 3 or frames.dtype != np.uint8 or frames.size == 0:
        raise RunError(
            f"{file} is damaged: expected gray frames (time, height, width), got {frames.dtype} "
            f"of shape {frames.shape}"
        )


def read_clips(networks: Sequence[Network], folder: str = LAST) -> dict[str, dict[str, Frames]]:
    """Return the clips by game and arm: that of the first network of the arm that has one.

    Args:
        networks: the networks of a run.
        folder: one of `CLIP_FOLDERS`, which says when they were recorded.
    """
    clips: dict[str, dict[str, Frames]] = defaultdict(dict)
    for network in networks:
        for file in sorted((network.path / folder).glob("*.npz")):
            if network.arm not in clips[file.stem]:
                clips[file.stem][network.arm] = np.load(file)["frames"]
    return dict(sorted(clips.items()))


def clip_panels(networks: Sequence[Network]) -> list[Panel]:
    """Return one panel per game, with a film of each arm at each moment.

    Before training the arms are the same network, so only the first is shown.
    """
    names = {file_name(game): game_name(game) for network in networks for game in network.games}
    films: dict[str, list[Film]] = defaultdict(list)
    for folder in CLIP_FOLDERS:
        for game, arms in read_clips(networks, folder).items():
            for arm, clip in list(arms.items())[: 1 if folder == UNTRAINED else None]:
                label = "untrained network" if folder == UNTRAINED else ARM_LABELS[arm]
                films[game].append(Film(label, clip, MILLISECONDS, MOMENTS[folder]))
    return [Panel(title=names.get(game, game), films=of) for game, of in sorted(films.items())]


def draw_clips(networks: Sequence[Network], directory: Path) -> list[Path]:
    """Write one GIF per game, with the first network of each arm that has a clip of it."""
    clips = read_clips(networks)
    return [_write_gif(directory / f"{game}.gif", arms) for game, arms in clips.items()]


def _write_gif(file: Path, arms: dict[str, Frames]) -> Path:
    """Write the clips of the arms; the last frame of a shorter clip is shown until the end."""
    length = max(len(frames) for frames in arms.values())
    pictures = [
        _side_by_side({arm: frames[min(step, len(frames) - 1)] for arm, frames in arms.items()})
        for step in range(length)
    ]
    content = io.BytesIO()
    pictures[0].save(
        content,
        "GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=MILLISECONDS,
        loop=0,  # for ever
    )
    return replace_file(file, content.getvalue())


def _side_by_side(frames: dict[str, Frames]) -> Image.Image:
    """Draw one frame per arm, each with its caption above."""
    frame_height, frame_width = next(iter(frames.values())).shape
    factor = max(1, SIDE // frame_width)
    height, width = factor * frame_height, factor * frame_width
    size = (len(frames) * (width + GAP) - GAP, height + CAPTION_HEIGHT)
    picture = Image.new("L", size, color=40)
    draw = ImageDraw.Draw(picture)
    for number, (arm, frame) in enumerate(frames.items()):
        left = number * (width + GAP)
        enlarged = frame.repeat(factor, 0).repeat(factor, 1)
        picture.paste(Image.fromarray(enlarged), (left, CAPTION_HEIGHT))
        draw.text((left + 3, 1), ARM_LABELS[arm], fill=230)
    return picture
