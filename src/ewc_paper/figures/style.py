"""The style that all figures share: color, line style and marker per method, and saving.

Colors of one figure can be told apart with color blindness too (a test measures it), and lines of
different colors also differ in line style and marker.
"""

import io
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")  # figures are files; no display is needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, MaxNLocator

from ewc_paper.runs.files import replace_file

RED = "#c8282d"
ORANGE = "#e69f00"
BLUE = "#2b6cb0"
SKY = "#56b4e9"
GRAY = "#777777"
BLACK = "#222222"
MINT = "#20d98c"
VIOLET = "#4b1fd6"
PINK = "#f5a5e7"

SOLID, DASHED, DASHDOT, DOTTED = "-", "--", "-.", ":"
DASHDOTDOT = (0, (5, 1, 1, 1, 1, 1))
LONG_DASHED = (0, (8, 3))
LONG_DASHDOT = (0, (8, 2, 1, 2))
DENSELY_DOTTED = (0, (1, 1))


class Look(NamedTuple):
    """How one line of a figure looks."""

    color: str
    line_style: Any  # as matplotlib's `linestyle`
    marker: str
    width: float = 1.5


# By method, arm of `games`, kind of pull (`strength`) and shape of noise (`perturbation`).
LOOKS = {
    "ewc": Look(RED, SOLID, "o"),
    "l2": Look(ORANGE, DASHDOT, "s"),
    "sgd": Look(BLUE, DASHED, "^"),
    "dropout": Look(SKY, DOTTED, "D"),
    "joint": Look(GRAY, DASHDOTDOT, "v"),
    "single": Look(BLACK, LONG_DASHED, "", 1.0),
    "proximal": Look(RED, SOLID, "o"),
    "gradient": Look(BLUE, DASHED, "^"),
    "plain": Look(BLUE, DASHED, "^"),
    "ewc-labels": Look(ORANGE, DASHDOT, "s"),
    "ewc-fmn": Look(RED, SOLID, "o"),
    "gates": Look(MINT, DENSELY_DOTTED, "d"),
    "ewc-gates-labels": Look(VIOLET, DASHDOTDOT, "P"),
    "ewc-gates-fmn": Look(PINK, LONG_DASHDOT, "X"),
    "random": Look(GRAY, DOTTED, "D"),
    "uniform": Look(BLACK, SOLID, "o"),
    "inverse-fisher": Look(BLUE, DASHED, "^"),
    "nullspace": Look(ORANGE, DASHDOT, "s"),
}


def look_style(look: Look) -> dict[str, Any]:
    """Return the arguments of `plot` for a line, without markers."""
    return {"color": look.color, "linestyle": look.line_style, "linewidth": look.width}


def line_style(name: str) -> dict[str, Any]:
    """Return the arguments of `plot` for the line of a method, without markers."""
    return look_style(LOOKS[name])


def marker_style(name: str) -> dict[str, Any]:
    """Return the arguments of `plot` for the line of a method, with a marker at each point."""
    return {**line_style(name), "marker": LOOKS[name].marker, "markersize": 4}


def axes(width: float = 5.0, height: float = 3.4) -> Axes:
    """Create a figure of a size in inches and return its axes."""
    _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    return tidy(ax)


def use_short_numbers(ax: Axes) -> None:
    """Write numbers on the x axis as 40k or 1.2M, for agent steps."""
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def use_whole_numbers(axis: Axis) -> None:
    """Put ticks on an axis at round whole numbers only."""
    axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def tidy(ax: Axes) -> Axes:
    """Hide the top and right borders of the axes, and return the axes."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def save(ax: Axes, file: Path) -> Path:
    """Save the figure that the axes are part of, close it, and return the file.

    Its suffix tells the format: .png, .svg or .pdf.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    picture = io.BytesIO()
    figure.savefig(picture, format=file.suffix.removeprefix("."), dpi=150)
    plt.close(figure)
    return replace_file(file, picture.getvalue())
