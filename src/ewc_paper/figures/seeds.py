"""Rows of several seeds side by side: `values[seed, position]` to a mean line and a band.

NaN stands for a network that diverged. It is left out of means, but never without a word.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes


def plot_band(ax: Axes, x: Sequence[float], values: Sequence[Sequence[float]], **line: Any) -> None:
    """The mean over seeds and, for several, a band of one standard deviation either side."""
    array = np.ma.masked_invalid(np.asarray(values, dtype=float))
    mean = array.mean(0).filled(np.nan)
    ax.plot(x, mean, **line)
    if len(array) > 1:
        spread = array.std(0, ddof=1).filled(np.nan)
        ax.fill_between(
            x, mean - spread, mean + spread, color=line["color"], alpha=0.2, linewidth=0
        )


def mean_and_spread(values: Sequence[float]) -> str:
    """`97.05 ± 0.03`, or the value alone for one seed; says which of them diverged."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "diverged"
    text = f"{np.mean(finite):.2f}"
    if len(finite) > 1:
        text += f" ± {np.std(finite, ddof=1):.2f}"
    lost = len(values) - len(finite)
    return f"{text} ({lost} of {len(values)} diverged)" if lost else text
