"""The look that all figures share: the paper's colors for the methods, and saving."""

import io
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # figures are files; no screen is needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from ewc.runs.files import replace_file

COLORS = {
    "ewc": "#c8282d",
    "l2": "#3a9a4a",
    "sgd": "#2b6cb0",
    "dropout": "#2b6cb0",
    "joint": "#777777",
    "single": "#222222",
    "proximal": "#c8282d",
    "gradient": "#2b6cb0",
    "plain": "#2b6cb0",
    "ewc-labels": "#8c5a2b",
    "ewc-fmn": "#c8282d",
    "uniform": "#222222",
    "inverse-fisher": "#2b6cb0",
    "nullspace": "#e8871e",
}


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
