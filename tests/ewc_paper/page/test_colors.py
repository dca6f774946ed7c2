"""On a dark page every color can be seen, and colors of one figure can be told apart."""

from itertools import combinations

import pytest
from matplotlib.colors import to_rgb

from ewc_paper.figures import style
from ewc_paper.figures.names import ARM_LABELS, METHOD_LABELS
from ewc_paper.page.colors import DARK_PAGE, contrast, dark, dark_area


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", style.LOOKS)
def test_every_line_can_be_seen(name: str) -> None:
    assert contrast(dark(style.LOOKS[name].color), DARK_PAGE) >= 3


@pytest.mark.parametrize("names", [tuple(METHOD_LABELS), tuple(ARM_LABELS)])
def test_colors_of_one_figure_stay_different(names: tuple[str, ...]) -> None:
    colors = [to_rgb(dark(style.LOOKS[name].color)) for name in names]
    for one, other in combinations(colors, 2):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.15


def test_a_color_that_can_be_seen_stays_and_black_becomes_white() -> None:
    assert dark("#f5a5e7") == "#f5a5e7"
    assert dark("#000000") == "#ffffff"


def test_a_light_area_becomes_dark_so_that_lines_on_it_are_seen() -> None:
    for color in ("#ededed", "#f5e3b5", "#b9b9b9"):
        for name in METHOD_LABELS:
            assert contrast(dark(style.LOOKS[name].color), dark_area(color)) >= 2
    assert dark_area("#1f77b4") == dark("#1f77b4")
