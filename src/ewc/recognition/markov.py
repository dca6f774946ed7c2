"""The hidden Markov model of the task: its switches, in logarithms of probabilities."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def switch_matrix(states: int, switch: float) -> Floats:
    """Γ: the state stays with probability 1 - `switch`, else goes to one of the others."""
    matrix = np.full((states, states), switch / max(1, states - 1))
    np.fill_diagonal(matrix, 1 - switch if states > 1 else 1)
    return matrix


def switched(log_p: Floats, switch: float) -> Floats:
    """log Σ_c' Γ(c, c') p(c')."""
    return _log_sum_exp(np.log(switch_matrix(len(log_p), switch)) + log_p)


def normalized(log_p: Floats) -> Floats:
    return log_p - _log_sum_exp(log_p)


def _log_sum_exp(terms: Floats) -> Floats:
    """Over the last axis."""
    largest = terms.max(axis=-1)
    total: Floats = largest + np.log(np.exp(terms - largest[..., None]).sum(axis=-1))
    return total
