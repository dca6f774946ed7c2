"""The look that all figures share: colors, line styles and markers of the methods, and saving.

The colors of one figure stay apart for readers who do not see red and green as others do (a test
measures it), and what has another color also has another line style and marker.
"""

import io
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # figures are files; no screen is needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from ewc_paper.runs.files import replace_file

RED, ORANGE, BLUE, SKY, GRAY, BLACK = (
    *("#c8282d", "#e69f00", "#2b6cb0", "#56b4e9"),
    *("#777777", "#222222"),
)
SOLID, DASHED, DASHDOT, DOTTED, DASHDOTDOT, LONG_DASHED = (
    *("-", "--", "-.", ":"),
    *((0, (5, 1, 1, 1, 1, 1)), (0, (8, 3))),
)

# by method, arm, way to pull or shape of noise: color, line style and marker
LOOKS: dict[str, tuple[str, Any, str]] = {
    "ewc": (RED, SOLID, "o"),
    "l2": (ORANGE, DASHDOT, "s"),
    "sgd": (BLUE, DASHED, "^"),
    "dropout": (SKY, DOTTED, "D"),
    "joint": (GRAY, DASHDOTDOT, "v"),
    "single": (BLACK, LONG_DASHED, ""),
    "proximal": (RED, SOLID, "o"),
    "gradient": (BLUE, DASHED, "^"),
    "plain": (BLUE, DASHED, "^"),
    "ewc-labels": (ORANGE, DASHDOT, "s"),
    "ewc-fmn": (RED, SOLID, "o"),
    "uniform": (BLACK, SOLID, "o"),
    "inverse-fisher": (BLUE, DASHED, "^"),
    "nullspace": (ORANGE, DASHDOT, "s"),
}


def line(name: str) -> dict[str, Any]:
    """How the line of a method is drawn, in the plot and in the legend."""
    color, style, _ = LOOKS[name]
    return {"color": color, "linestyle": style, "linewidth": 1 if name == "single" else 1.5}


def points(name: str) -> dict[str, Any]:
    """Its line with a marker at each point."""
    return {**line(name), "marker": LOOKS[name][2], "markersize": 4}


def axes(width: float = 5.0, height: float = 3.4) -> Axes:
    """Fresh axes of a size in inches."""
    _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    return tidy(ax)


def tidy(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def save(ax: Axes, file: Path) -> Path:
    """Save the figure that the axes are part of."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150)
    plt.close(figure)
    return replace_file(file, picture.getvalue())
