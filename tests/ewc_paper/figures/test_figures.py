"""What a figure shows, as data, and how matplotlib draws it."""

import math
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb, to_rgba

from ewc.step_size import How
from ewc_paper.experiments.games.run import ARMS, Games
from ewc_paper.experiments.many_tasks import SINGLE
from ewc_paper.experiments.perturbation import SHAPE_LABELS
from ewc_paper.figures import plot
from ewc_paper.figures.names import (
    ARM_LABELS,
    METHOD_LABELS,
    game_marks,
    game_name,
    in_order,
    mean_and_deviation,
    task_name,
)
from ewc_paper.figures.panel import (
    DARK,
    LOOKS,
    MAX_POSITIONS,
    Box,
    Dots,
    Figure,
    Level,
    Note,
    Panel,
    Region,
    Series,
    by_seed,
)
from ewc_paper.figures.plot import add_game_legend, game_colors, plot_panel
from ewc_paper.mnist.config import METHODS


def test_every_arm_and_method_that_can_be_run_has_a_label() -> None:
    assert list(ARM_LABELS) == list(ARMS)
    assert METHOD_LABELS.keys() == {*METHODS, SINGLE}


def test_items_come_in_the_order_given_and_others_last() -> None:
    items = {"a": 1, "b": 2, "c": 3}
    assert list(in_order(items, ["c", "missing", "b"]).items()) == [("c", 3), ("b", 2), ("a", 1)]


@pytest.mark.parametrize(("task", "name"), [(0, "A"), (25, "Z"), (26, "27")])
def test_tasks_are_letters_and_then_numbers(task: int, name: str) -> None:
    assert task_name(task) == name


@pytest.mark.parametrize(
    ("game", "name"),
    [
        ("CrazyClimber", "Crazy Climber"),
        ("UpNDown", "Up'n Down"),
        ("minatar/space_invaders", "space invaders"),
        ("minatar/breakout:rotate90,actions1,channels12", "breakout 90° a1 c12"),
        ("minatar/asterix:mirror", "asterix mirror"),
    ],
)
def test_games_have_names_to_read(game: str, name: str) -> None:
    assert game_name(game) == name


def test_the_marks_of_games_are_explained_where_there_are_any() -> None:
    assert game_marks(["Pong", "minatar/breakout"]) == []
    marks = game_marks(["minatar/breakout", "minatar/breakout:rotate90,channels2"])
    assert [line.partition(":")[0] for line in marks] == ["90°, 180°, 270°", "c1, c2, ..."]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([97.0], "97.00"),
        ([97.0, 98.0], "97.50 ± 0.71"),
        ([97.0, math.nan], "97.00 (1 of 2 diverged)"),
        ([97.0, 98.0, math.inf], "97.50 ± 0.71 (1 of 3 diverged)"),
        ([math.nan, math.nan], "diverged"),
    ],
)
def test_means_are_of_finite_values(values: list[float], text: str) -> None:
    assert mean_and_deviation(values) == text


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_left_out_of_the_mean() -> None:
    nan = math.nan
    values = {"seed 0": [1.0, 2.0, nan], "seed 1": [3.0, nan, nan], "seed 2": [nan, nan, nan]}
    series = Series("EWC", LOOKS["ewc"], [0, 1, 2], values)
    np.testing.assert_array_equal(series.mean, [2.0, 2.0, math.nan])
    assert series.deviation is not None
    np.testing.assert_allclose(series.deviation, [math.sqrt(2), math.nan, math.nan])


def test_two_seeds_are_two_lines_and_no_band() -> None:
    series = Series("EWC", LOOKS["ewc"], [0, 1], {"seed 0": [1.0, 2.0], "seed 1": [3.0, 4.0]})
    assert series.deviation is None
    assert series.pair == [[1.0, 2.0], [3.0, 4.0]]
    assert series.mean.tolist() == [2.0, 3.0]
    one = Series("EWC", LOOKS["ewc"], [0], {"seed 0": [1.0]})
    three = Series("EWC", LOOKS["ewc"], [0], {"seed 0": [1.0], "seed 1": [2.0], "seed 2": [3.0]})
    assert one.pair == three.pair == []


def test_one_seed_has_no_deviation() -> None:
    series = Series("EWC", LOOKS["ewc"], [0, 1], {"seed 0": [1.0, 2.0]})
    assert series.deviation is None
    assert series.mean.tolist() == [1.0, 2.0]


def test_a_seed_that_has_not_come_so_far_keeps_its_own_line() -> None:
    points = {1: {"seed 0": 10.0, "seed 1": 11.0}, 2: {"seed 1": 21.0}}
    found = by_seed(points)
    assert found["seed 1"] == [11.0, 21.0]
    assert found["seed 0"][0] == 10.0
    assert math.isnan(found["seed 0"][1])


LOOK = LOOKS["ewc"]


@pytest.fixture
def ax() -> Iterator[Any]:
    yield plot.axes()
    plot.plt.close("all")


@pytest.mark.filterwarnings("error")
def test_the_band_is_one_standard_deviation_around_the_mean(ax: Any) -> None:
    values = {"0": [1.0, 2.0, math.nan], "1": [3.0, math.nan, math.nan], "2": [math.nan] * 3}
    plot_panel(ax, Panel("x", "y", series=[Series("EWC", LOOK, [0, 1, 2], values)]))
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [2.0, 2.0, math.nan])
    (band,) = ax.collections
    ends = [y for path in band.get_paths() for x, y in path.vertices if x == 0]
    assert (min(ends), max(ends)) == pytest.approx((2 - math.sqrt(2), 2 + math.sqrt(2)))


def test_two_seeds_are_thin_lines_beside_their_mean(ax: Any) -> None:
    values = {"0": [1.0, 2.0], "1": [3.0, 4.0]}
    plot_panel(ax, Panel("x", "y", series=[Series("EWC", LOOK, [0, 1], values)]))
    assert len(ax.collections) == 0
    assert [list(line.get_ydata()) for line in ax.lines] == [[2.0, 3.0], [1.0, 2.0], [3.0, 4.0]]
    assert ax.lines[1].get_linewidth() < ax.lines[0].get_linewidth()
    assert ax.get_legend_handles_labels()[1] == ["EWC"]


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


# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(color: str, sight: str) -> np.ndarray:
    """Return a color in CIELAB, as it is seen."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ (SIGHT[sight] @ linear).clip(0, 1) / WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: str, other: str, sight: str) -> float:
    """Return ΔE of CIE76."""
    return float(np.linalg.norm(lab(one, sight) - lab(other, sight)))


def test_differences_match_published_values() -> None:
    assert difference("#ffffff", "#000000", "normal") == pytest.approx(100, abs=0.01)
    assert difference("#c8282d", "#8c5a2b", "deuteranopia") == pytest.approx(8.9, abs=0.05)
    assert difference("#c8282d", "#3a9a4a", "deuteranopia") == pytest.approx(14.9, abs=0.05)


# The arms that a figure compares; more of them look different in line style and marker alone.
PRESETS_ARMS = sorted({Games.preset(preset).arms for preset in Games.presets})


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    "names",
    [tuple(METHOD_LABELS), *PRESETS_ARMS, tuple(SHAPE_LABELS), get_args(How)],
)
def test_lines_of_one_figure_can_be_told_apart(names: tuple[str, ...], sight: str) -> None:
    for one, other in combinations(names, 2):
        first, second = LOOKS[one], LOOKS[other]
        assert difference(first.color, second.color, sight) > 25, (one, other)
        assert first.line_style != second.line_style
        assert first.marker != second.marker


def test_no_two_arms_look_the_same() -> None:
    assert len({LOOKS[name] for name in ARM_LABELS}) == len(ARM_LABELS)
    assert len({LOOKS[name].marker for name in ARM_LABELS}) == len(ARM_LABELS)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    "names", [tuple(METHOD_LABELS), *PRESETS_ARMS, tuple(SHAPE_LABELS), get_args(How)]
)
def test_lines_can_be_told_apart_in_the_dark_too(names: tuple[str, ...], sight: str) -> None:
    colors = {name: DARK[LOOKS[name].color] for name in names}
    for one, other in combinations(names, 2):
        assert difference(colors[one], colors[other], sight) > 25, (one, other)


@pytest.mark.parametrize("name", LOOKS)
def test_markers_are_added_to_the_same_line(name: str) -> None:
    line, marked = plot.line_style(name), plot.marker_style(name)
    assert line.items() < marked.items()
    assert marked["marker"] == LOOKS[name].marker


def test_numbers_on_axes_are_short_or_whole() -> None:
    ax = plot.axes()
    ax.plot([0, 80_000], [0, 50])
    plot.use_short_numbers(ax)
    plot.use_whole_numbers(ax.yaxis)
    ax.figure.canvas.draw()
    assert "80k" in [label.get_text() for label in ax.get_xticklabels()]
    assert {10, 20, 30, 40, 50} <= set(ax.get_yticks())
    plot.plt.close("all")


def test_a_figure_is_saved_closed_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "figures" / "figure.png"
    for size in (2.0, 4.0):
        ax = plot.axes(size, 1.0)
        assert not ax.spines["top"].get_visible()
        assert plot.save(ax, file) == file
        assert plot.plt.get_fignums() == []
        assert matplotlib.image.imread(file).shape[:2] == (150, 150 * size)


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_name_of_a_file_tells_its_format(kind: str, start: bytes, tmp_path: Path) -> None:
    file = plot.save(plot.axes(), tmp_path / f"figure.{kind}")
    assert file.read_bytes().startswith(start)


def test_up_to_twenty_games_have_different_colors() -> None:
    for count in (2, 10, 11, 20):
        colors = game_colors([str(number) for number in range(count)])
        assert len(set(colors.values())) == count


def test_the_legend_names_the_games_in_their_colors() -> None:
    ax = plot.axes()
    colors = game_colors(["CrazyClimber", "Pong"])
    add_game_legend(ax, colors, opacity=0.5)
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Crazy Climber", "Pong"]
    shown = [patch.get_facecolor() for patch in legend.get_patches()]
    assert shown == [to_rgba(color, alpha=0.5) for color in colors.values()]
    plot.plt.close("all")


def test_a_line_with_very_many_positions_is_thinned_out_and_keeps_its_peaks() -> None:
    values = np.zeros(100_000)
    values[12_345], values[54_321] = 7.0, -3.0
    values[77_000:78_000] = np.nan  # it diverged there
    other = values + 1
    series = Series(
        "ewc", LOOKS["ewc"], range(100_000), {"0": values.tolist(), "1": other.tolist()}
    )
    figure = Figure("many", "many", "", [Panel(series=[series])])
    (drawn,) = figure.panels[0].series
    assert len(drawn.x) <= MAX_POSITIONS
    assert (drawn.x[0], drawn.x[-1]) == (0, 99_999)
    assert np.nanmax(drawn.mean) == 7.5
    assert np.nanmin(drawn.mean) == -2.5
    at = list(drawn.x).index(12_345)
    assert (drawn.values["0"][at], drawn.values["1"][at]) == (7.0, 8.0)
    assert list(drawn.x) == sorted(set(drawn.x))


def test_a_line_that_fits_is_left_as_it_is() -> None:
    series = Series("ewc", LOOKS["ewc"], range(4000), {"": [0.5] * 4000})
    assert Figure("few", "few", "", [Panel(series=[series])]).panels[0].series[0] is series
