"""Figures can be read by everybody: lines of one figure differ in color, style and marker."""

from itertools import combinations
from pathlib import Path
from typing import get_args

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from ewc.step_size import How
from ewc_paper.experiments.perturbation.figure import SHAPE_LABELS
from ewc_paper.figures import style
from ewc_paper.figures.names import ARM_LABELS, METHOD_LABELS

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


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    "names",
    [tuple(METHOD_LABELS), tuple(ARM_LABELS), tuple(SHAPE_LABELS), get_args(How)],
    ids=["methods", "arms", "shapes", "pulls"],
)
def test_lines_of_one_figure_can_be_told_apart(names: tuple[str, ...], sight: str) -> None:
    for one, other in combinations(names, 2):
        first, second = style.LOOKS[one], style.LOOKS[other]
        assert difference(first.color, second.color, sight) > 25, (one, other)
        assert first.line_style != second.line_style
        assert first.marker != second.marker


@pytest.mark.parametrize("name", style.LOOKS)
def test_markers_are_added_to_the_same_line(name: str) -> None:
    line, marked = style.line_style(name), style.marker_style(name)
    assert line.items() < marked.items()
    assert marked["marker"] == style.LOOKS[name].marker


def test_numbers_on_axes_are_short_or_whole() -> None:
    ax = style.axes()
    ax.plot([0, 80_000], [0, 50])
    style.use_short_numbers(ax)
    style.use_whole_numbers(ax.yaxis)
    ax.figure.canvas.draw()
    assert "80k" in [label.get_text() for label in ax.get_xticklabels()]
    assert {10, 20, 30, 40, 50} <= set(ax.get_yticks())
    style.plt.close("all")


def test_a_figure_is_saved_closed_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "figures" / "figure.png"
    for size in (2.0, 4.0):
        ax = style.axes(size, 1.0)
        assert not ax.spines["top"].get_visible()
        assert style.save(ax, file) == file
        assert style.plt.get_fignums() == []
        assert matplotlib.image.imread(file).shape[:2] == (150, 150 * size)


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_name_of_a_file_tells_its_format(kind: str, start: bytes, tmp_path: Path) -> None:
    file = style.save(style.axes(), tmp_path / f"figure.{kind}")
    assert file.read_bytes().startswith(start)
