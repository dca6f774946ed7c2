"""Rows of several seeds side by side: `values[seed, position]` to a mean line and a band."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes


def plot_band(ax: Axes, x: Sequence[float], values: Sequence[Sequence[float]], **line: Any) -> None:
    """The mean over seeds and, for several, a band of one standard deviation either side."""
    array = np.asarray(values, dtype=float)
    mean = array.mean(0)
    ax.plot(x, mean, **line)
    if len(array) > 1:
        spread = array.std(0, ddof=1)
        ax.fill_between(
            x, mean - spread, mean + spread, color=line["color"], alpha=0.2, linewidth=0
        )


def mean_and_spread(values: Sequence[float]) -> str:
    """`97.05 ± 0.03`, or the value alone for one seed."""
    mean = f"{np.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.2f}"
