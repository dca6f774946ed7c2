"""The hidden Markov model of the current task: its switches, in logarithms of probabilities."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def switched(log_p: Floats, switch: float) -> Floats:
    """Return log Σ_c' Γ(c, c') p(c'), where a state stays with probability 1 - `switch`.

    Otherwise it goes to each of the K-1 others with probability g = `switch` / (K-1), so that the
    sum is g Σ_c' p(c') + (1 - `switch` - g) p(c).
    """
    if len(log_p) == 1:
        return log_p
    largest = log_p.max()
    p = np.exp(log_p - largest)
    g = switch / (len(p) - 1)
    total: Floats = largest + np.log(g * p.sum() + (1 - switch - g) * p)
    return total


def normalized(log_p: Floats) -> Floats:
    """Return the logarithms of the same probabilities, scaled to sum to one."""
    largest = log_p.max()
    total: Floats = log_p - (largest + np.log(np.exp(log_p - largest).sum()))
    return total
