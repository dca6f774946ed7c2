"""Switches of the task, against sums over probabilities."""

import numpy as np
import pytest

from ewc.recognition.markov import normalized, switched


@pytest.mark.parametrize("states", [1, 2, 3, 15])
@pytest.mark.parametrize("switch", [0.5, 0.1, 1e-7])
def test_a_switch_is_a_product_with_the_matrix_of_the_paper(states: int, switch: float) -> None:
    matrix = np.full((states, states), switch / max(1, states - 1))
    np.fill_diagonal(matrix, 1 - switch if states > 1 else 1)
    assert matrix.sum(axis=0) == pytest.approx(np.ones(states))
    p = np.random.default_rng(0).dirichlet(np.ones(states))
    assert np.exp(switched(np.log(p), switch)) == pytest.approx(matrix @ p, rel=1e-14)


def test_a_switch_moves_probability_to_the_others_alike() -> None:
    p = np.array([0.7, 0.2, 0.1])
    expected = [
        sum(p[other] * (0.9 if state == other else 0.05) for other in range(3))
        for state in range(3)
    ]
    assert np.exp(switched(np.log(p), 0.1)) == pytest.approx(expected)


def test_probabilities_far_below_the_smallest_number_are_kept() -> None:
    log_p = normalized(np.array([-1e5, -1e5 - np.log(3), -np.inf]))
    assert np.exp(log_p) == pytest.approx([0.75, 0.25, 0.0])
    assert switched(np.array([0.0, -1e5]), 1e-6)[1] == pytest.approx(np.log(1e-6))
