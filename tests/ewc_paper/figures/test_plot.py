"""Every mark of a panel is drawn where its data says."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ewc_paper.figures import style
from ewc_paper.figures.panel import Box, Dots, Level, Note, Panel, Region, Series
from ewc_paper.figures.plot import plot_panel

LOOK = style.LOOKS["ewc"]


@pytest.fixture
def ax() -> Iterator[Any]:
    yield style.axes()
    style.plt.close("all")


@pytest.mark.filterwarnings("error")
def test_the_band_is_one_standard_deviation_around_the_mean(ax: Any) -> None:
    values = {"0": [1.0, 2.0, math.nan], "1": [3.0, math.nan, math.nan]}
    plot_panel(ax, Panel("x", "y", series=[Series("EWC", LOOK, [0, 1, 2], values)]))
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [2.0, 2.0, math.nan])
    (band,) = ax.collections
    ends = [y for path in band.get_paths() for x, y in path.vertices if x == 0]
    assert (min(ends), max(ends)) == pytest.approx((2 - math.sqrt(2), 2 + math.sqrt(2)))


def test_one_seed_has_no_band(ax: Any) -> None:
    plot_panel(ax, Panel("x", "y", series=[Series("EWC", LOOK, [0, 1], {"0": [1.0, 2.0]})]))
    assert len(ax.collections) == 0


@pytest.mark.parametrize(("markers", "every"), [("none", None), ("all", None), ("end", [-1])])
def test_markers_are_at_the_positions_asked_for(ax: Any, markers: Any, every: Any) -> None:
    series = Series("EWC", LOOK, [0, 1], {"0": [1.0, 2.0]}, markers)
    plot_panel(ax, Panel("x", "y", series=[series]))
    assert ax.lines[0].get_marker() == ("None" if markers == "none" else LOOK.marker)
    assert ax.lines[0].get_markevery() == every


def test_boxes_levels_dots_borders_and_notes(ax: Any) -> None:
    panel = Panel(
        "across",
        "up",
        boxes=[Box("trained", "#ff0000", (1, 3), (0.5, 1.5)), Box("", "#eeeeee", (0, 2))],
        levels=[Level("alone", LOOK, 0.9), Level("random", LOOK, 2.5, upright=True)],
        dots=[Dots("end", LOOK, [1.0], [2.0])],
        borders=[2.0],
        notes=[Note("here", 1, 1, "#000000")],
        y_names=["A", "B", "C"],
        note="remark",
    )
    plot_panel(ax, panel)
    bar = next(patch for patch in ax.patches if patch.get_height() == 1.0 and patch.get_x() == 1)
    assert (bar.get_width(), bar.get_y()) == (2, 0.5)
    level, upright, dot, border = ax.lines
    assert set(level.get_ydata()) == {0.9}
    assert set(upright.get_xdata()) == {2.5}
    assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([1.0], [2.0])
    assert set(border.get_xdata()) == {2.0}
    assert [text.get_text() for text in ax.texts] == ["here"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A", "B", "C"]
    assert ax.get_title(loc="left") == "remark"
    assert ax.get_ylim() == (2.5, -0.5)


def test_the_inner_ring_of_a_region_is_a_hole(ax: Any) -> None:
    outer = [(0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0), (0.0, 0.0)]
    inner = [(1.0, 1.0), (1.0, 3.0), (3.0, 3.0), (3.0, 1.0), (1.0, 1.0)]
    panel = Panel("x", "y", regions=[Region("low", "#00ff00", [outer, inner])])
    plot_panel(ax, Panel(**{**vars(panel), "x_limits": (0, 4), "y_limits": (0, 4)}))
    ax.figure.canvas.draw()
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())[::-1]
    x, y = (int(at) for at in ax.transData.transform((2, 2)))
    left, low = (int(at) for at in ax.transData.transform((0.5, 2)))
    assert pixels[y, x, :3].tolist() == [255, 255, 255]
    assert pixels[low, left, 0] < 100 < pixels[low, left, 1]


def test_the_axes_have_their_labels_limits_and_scale(ax: Any) -> None:
    panel = Panel("x axis", "y axis", x_log=True, x_limits=(1, 100), y_limits=(None, 7))
    plot_panel(ax, panel)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x axis", "y axis")
    assert (ax.get_xscale(), ax.get_xlim(), ax.get_ylim()[1]) == ("log", (1, 100), 7)
