"""Several seeds in one cell of a table, as their mean and standard deviation.

NaN stands for a network that diverged. It is left out of means, and tables say so.
"""

import math
from collections.abc import Sequence

import numpy as np


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
