"""Films fit into their budget, and every picture is where films.js looks for it."""

import io

import numpy as np
import pytest
from PIL import Image

from ewc_paper.figures.panel import Film
from ewc_paper.page.films import LONGEST, sheets

NOISE = np.random.default_rng(0).integers(0, 256, (60, 8, 6), np.uint8)


@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_every_picture_is_in_its_place(count: int) -> None:
    (sheet,) = sheets([Film("EWC", NOISE[:count], 70)], 10**6)
    picture = np.asarray(Image.open(io.BytesIO(sheet.png)))
    assert (sheet.frames, sheet.milliseconds) == (count, 70)
    for number in range(count):
        row, column = divmod(number, sheet.columns)
        shown = picture[row * 8 : (row + 1) * 8, column * 6 : (column + 1) * 6]
        np.testing.assert_array_equal(shown, NOISE[number])


def test_what_is_too_large_shows_fewer_pictures_for_longer() -> None:
    film = Film("EWC", NOISE, 70)
    (whole,) = sheets([film], 10**6)
    budget = len(whole.png) // 3
    (found,) = sheets([film], budget)
    assert len(found.png) <= budget
    assert (found.frames, found.milliseconds) == (15, 280)
    assert sheets([film], 10) == []


def test_a_long_film_ends_early_and_no_film_needs_nothing() -> None:
    (sheet,) = sheets([Film("EWC", np.zeros((LONGEST + 50, 2, 2), np.uint8), 70)], 10**6)
    assert sheet.frames == LONGEST
    assert sheets([], 0) == []
