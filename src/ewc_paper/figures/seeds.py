"""Several seeds in one figure or table: `values[seed][position]` as a mean line and a band.

NaN stands for a network that diverged. It is left out of means, and tables say so.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes


def plot_band(ax: Axes, x: Sequence[float], values: Sequence[Sequence[float]], **line: Any) -> None:
    """Plot the mean over seeds and, for several seeds, a band of ± one standard deviation.

    Args:
        ax: axes to draw into.
        x: positions.
        values: one sequence per seed, with one value per position.
        line: style and label of the mean line, with its color.
    """
    array = np.ma.masked_invalid(np.asarray(values, dtype=float))
    mean = array.mean(0).filled(np.nan)
    ax.plot(x, mean, **line)
    if len(array) > 1:
        deviation = array.std(0, ddof=1).filled(np.nan)
        ax.fill_between(
            x, mean - deviation, mean + deviation, color=line["color"], alpha=0.2, linewidth=0
        )


def mean_and_deviation(values: Sequence[float]) -> str:
    """Format one value per seed: `97.05 ± 0.03`, or the value alone if there is only one.

    Values that are not finite belong to networks that diverged; the text says how many there are.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "diverged"
    text = f"{np.mean(finite):.2f}"
    if len(finite) > 1:
        text += f" ± {np.std(finite, ddof=1):.2f}"
    diverged = len(values) - len(finite)
    return f"{text} ({diverged} of {len(values)} diverged)" if diverged else text
