"""Clips show the arms side by side until the longest ends; a damaged clip is named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.game_runs import make_games, write_clip

from ewc_paper.errors import RunError
from ewc_paper.experiments.games.clips import check_clip, clip_panels, draw_clips
from ewc_paper.experiments.games.data import read_networks
from ewc_paper.figures.names import ARM_LABELS


def test_a_clip_shows_the_arms_side_by_side_until_the_longest_ends(tmp_path: Path) -> None:
    networks = read_networks(make_games(tmp_path))
    (file,) = draw_clips(networks, tmp_path / "clips")
    assert file == tmp_path / "clips" / "Pong.gif"
    with Image.open(file) as clip:
        assert clip.n_frames == 7  # of Forget-Me-Not; plain training's ended after 4
        clip.seek(5)
        picture = np.asarray(clip.convert("L"))[14:]
    plain, gap, found = picture[:, :160], picture[:, 160:164], picture[:, 164:]
    assert plain.shape == found.shape == (160, 160)
    assert gap.max() < 60
    assert [np.flatnonzero(half[:, 80] > 200)[0] // 16 for half in (plain, found)] == [3, 5]


def test_the_first_network_of_an_arm_is_shown(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    write_clip(run, "plain-seed1", "Pong", 9)  # plain-seed0 has one of 4 frames
    (file,) = draw_clips(read_networks(run), tmp_path / "clips")
    with Image.open(file) as clip:
        assert clip.n_frames == 7


def test_the_page_has_the_same_clips(tmp_path: Path) -> None:
    (panel,) = clip_panels(read_networks(make_games(tmp_path)))
    assert panel.title == "Pong"
    assert [(film.label, len(film.frames)) for film in panel.films] == [
        (ARM_LABELS["plain"], 4),
        (ARM_LABELS["ewc-fmn"], 7),
    ]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", np.zeros(3).tobytes()])
def test_a_damaged_clip_is_named(content: bytes, tmp_path: Path) -> None:
    clip = tmp_path / "Pong.npz"
    clip.write_bytes(content)
    with pytest.raises(RunError, match=r"Pong\.npz is damaged: expected frames"):
        check_clip(clip)
    np.savez_compressed(clip, frames=np.zeros((4, 5)))
    with pytest.raises(RunError, match=r"Pong\.npz is damaged: expected gray frames"):
        check_clip(clip)
    np.savez_compressed(clip, frames=np.zeros((4, 5, 5), np.uint8))
    check_clip(clip)
