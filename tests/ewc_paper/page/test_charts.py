"""Figures as data for the page, their dark colors, and films."""

import io
import math
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from ewc_paper.experiments.games.run import Games
from ewc_paper.figures.names import METHOD_LABELS
from ewc_paper.figures.panel import (
    BLUE,
    DARK,
    LOOKS,
    Box,
    Dots,
    Figure,
    Film,
    Level,
    Note,
    Panel,
    Region,
    Series,
)
from ewc_paper.page.charts import (
    DARK_PAGE,
    LONGEST,
    contrast,
    dark,
    dark_area,
    dark_picture,
    figure_caption,
    number,
    number_tables,
    panel_data,
    sheets,
    summary,
)

VALUES = {"seed 0": [90.0, 80.0], "seed 1": [92.0, math.nan], "seed 2": [91.0, math.nan]}
EWC = Series("EWC", LOOKS["ewc"], [1, 2], VALUES)
LINE = Series("SGD", LOOKS["sgd"], [2, 2], {"": [0.5, 0.25]}, "all")


def test_a_line_has_its_seeds_mean_and_deviation() -> None:
    (found,) = panel_data(Panel("x", "y", series=[EWC]))["series"]
    assert found["x"] == [1, 2]
    assert found["mean"] == [91.0, 80.0]
    assert found["deviation"][0] == pytest.approx(1)
    assert found["seeds"]["seed 0"] == [90.0, 80.0]
    assert (found["color"], found["dash"]) == ("#c8282d", [])


def test_every_look_has_dashes_that_a_browser_understands() -> None:
    for look in LOOKS.values():
        series = Series("x", look, [1], {"": [1.0]})
        (found,) = panel_data(Panel(series=[series]))["series"]
        assert all(isinstance(one, int | float) and one > 0 for one in found["dash"])
    dashes = [
        tuple(panel_data(Panel(series=[Series("x", look, [1], {"": [1.0]})]))["series"][0]["dash"])
        for look in (LOOKS["sgd"], LOOKS["dropout"], LOOKS["joint"])
    ]
    assert len(set(dashes)) == 3


def test_all_marks_keep_their_places() -> None:
    ring = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]
    found = panel_data(
        Panel(
            "x",
            "y",
            levels=[Level("alone", LOOKS["single"], 98.0)],
            dots=[Dots("end", LOOKS["ewc"], [1.0], [2.0], small=True)],
            boxes=[Box("A", "#ededed", (0, 3), None, 0.5), Box("B", "#000000", (1, 2), (0, 1))],
            regions=[Region("low", "#f5e3b5", [ring])],
            notes=[Note("here", 1, 2, "0.25")],
            borders=[3.0],
            x_log=True,
            y_names=["one"],
        )
    )
    assert (found["levels"][0]["value"], found["levels"][0]["upright"]) == (98.0, False)
    assert (found["dots"][0]["x"], found["dots"][0]["small"]) == ([1.0], True)
    assert [(box["x"], box["y"]) for box in found["boxes"]] == [([0, 3], None), ([1, 2], [0, 1])]
    assert found["regions"][0]["rings"] == [ring]
    assert found["notes"][0]["color"] == "#404040"
    assert (found["x"]["log"], found["y"]["names"], found["borders"]) == (True, ["one"], [3.0])


def test_a_film_is_a_picture_in_the_page() -> None:
    film = Film("EWC", np.zeros((5, 4, 3), np.uint8), 70)
    (found,) = panel_data(Panel(films=[film]), sheets([film], 10_000))["films"]
    assert found["source"].startswith("data:image/png;base64,")
    assert (found["frames"], found["width"], found["height"]) == (5, 3, 4)


def test_the_sentence_says_where_lines_begin_and_end() -> None:
    level = Level("alone", LOOKS["single"], 98.0)
    said = summary(Panel("tasks", "accuracy", "task A", series=[EWC], levels=[level]))
    assert said == "task A. accuracy over tasks. EWC from 91 to 80; alone at 98."
    many = summary(Panel("x", "y", series=[EWC] * 6))
    assert many.endswith("2 more.")
    assert summary(Panel("x", y_names=["Pong", "Krull"])) == "rows over x. rows: Pong, Krull."


def test_the_table_has_a_row_per_position_and_a_column_per_line() -> None:
    figure = Figure("f", "t", "c", [Panel("tasks", "accuracy", "A", series=[EWC, LINE])])
    (table,) = number_tables(figure)
    root = ElementTree.fromstring(table)
    assert root.findtext("table/caption/span") == "A, accuracy"
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    assert rows == [
        ["tasks", "EWC", "SGD"],
        ["1", "91 ± 1", ""],
        ["2", "80 ± –", "0.5, then 0.25"],
    ]


def test_two_seeds_stand_beside_their_mean() -> None:
    pair = Series("EWC", LOOKS["ewc"], [1], {"seed 0": [90.0], "seed 1": [92.0]})
    (table,) = number_tables(Figure("f", "t", "c", [Panel("tasks", series=[pair])]))
    assert "<td>91 (90, 92)</td>" in table
    assert panel_data(Panel(series=[pair]))["series"][0]["deviation"] is None


def test_ways_and_steps_have_no_table() -> None:
    back = Series("way", LOOKS["ewc"], [1, 0], {"": [1.0, 2.0]})
    steps = Series("context", LOOKS["ewc"], [0, 1], {"": [1.0, 2.0]}, steps=True)
    for one in (back, steps):
        assert list(number_tables(Figure("f", "t", "c", [Panel(series=[one])]))) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(91.0, "91"), (1 / 3, "0.3333"), (160_000.0, "160,000"), (math.nan, "–"), (1e-5, "1e-05")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_a_caption_is_escaped() -> None:
    assert "<i>" not in figure_caption(Figure("f", "<i>", "<i>", []), "run0-figure0")


def test_a_picture_for_a_dark_page_has_its_color_and_light_lines() -> None:
    light = (
        '<svg xmlns="http://www.w3.org/2000/svg"><path style="fill: #ffffff"/>'
        f'<path style="stroke: {BLUE}; fill: none"/><text>a</text>'
        '<path style="fill: #fff2cc"/><path style="stroke: #7a5c00"/></svg>'
    )
    shown = ElementTree.fromstring(dark_picture(light, "#1e2129"))
    background, line, _, area, label = shown
    assert area.get("style") == f"fill: {dark_area('#fff2cc')}"  # dark, as lines lie on it
    color = str(label.get("style")).removeprefix("stroke: ")
    assert contrast(color, "#1e2129") >= 4.5  # that of text
    assert background.get("style") == "fill: #1e2129"
    assert line.get("style") == f"stroke: {DARK[BLUE]}; fill: none"
    assert shown.get("fill") == "#ffffff"  # of all that has no color of its own


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", LOOKS)
def test_every_line_can_be_seen(name: str) -> None:
    assert contrast(dark(LOOKS[name].color), DARK_PAGE) >= 3


@pytest.mark.parametrize(
    "names", [tuple(METHOD_LABELS), *{Games.preset(name).arms for name in Games.presets}]
)
def test_colors_of_one_figure_stay_different(names: tuple[str, ...]) -> None:
    colors = [to_rgb(dark(LOOKS[name].color)) for name in names]
    for one, other in combinations(colors, 2):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.15


def test_a_color_that_can_be_seen_stays_and_black_becomes_white() -> None:
    assert dark("#f5a5e7") == "#f5a5e7"
    assert dark("#000000") == "#ffffff"
    assert dark(BLUE) == DARK[BLUE]


def test_a_light_area_becomes_dark_so_that_lines_on_it_are_seen() -> None:
    for color in ("#ededed", "#f5e3b5", "#b9b9b9"):
        for name in METHOD_LABELS:
            assert contrast(dark(LOOKS[name].color), dark_area(color)) >= 2
    assert dark_area("#1f77b4") == dark("#1f77b4")


NOISE = np.random.default_rng(0).integers(0, 256, (60, 8, 6), np.uint8)


@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_every_picture_is_in_its_place(count: int) -> None:
    (sheet,) = sheets([Film("EWC", NOISE[:count], 70)], 10**6)
    picture = np.asarray(Image.open(io.BytesIO(sheet.png)))
    assert (sheet.frames, sheet.milliseconds) == (count, 70)
    for frame in range(count):
        row, column = divmod(frame, sheet.columns)
        shown = picture[row * 8 : (row + 1) * 8, column * 6 : (column + 1) * 6]
        np.testing.assert_array_equal(shown, NOISE[frame])


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
