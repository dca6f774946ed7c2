"""The data on the page are those of the panels, and the tables and sentences say the same."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from ewc_paper.figures.panel import Box, Dots, Figure, Film, Level, Note, Panel, Region, Series
from ewc_paper.figures.style import LOOKS
from ewc_paper.page.charts import figure_caption, number, number_tables, panel_data, summary
from ewc_paper.page.films import sheets

EWC = Series("EWC", LOOKS["ewc"], [1, 2], {"seed 0": [90.0, 80.0], "seed 1": [92.0, math.nan]})
LINE = Series("SGD", LOOKS["sgd"], [2, 2], {"": [0.5, 0.25]}, "all")


def test_a_line_has_its_seeds_mean_and_deviation() -> None:
    (found,) = panel_data(Panel("x", "y", series=[EWC]))["series"]
    assert found["x"] == [1, 2]
    assert found["mean"] == [91.0, 80.0]
    assert found["deviation"][0] == pytest.approx(math.sqrt(2))
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
    assert root.findtext("table/caption") == "A, accuracy"
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    assert rows == [
        ["tasks", "EWC", "SGD"],
        ["1", "91 ± 1.414", ""],
        ["2", "80 ± –", "0.5, then 0.25"],
    ]


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
    assert "<i>" not in figure_caption(Figure("f", "<i>", "<i>", []))
