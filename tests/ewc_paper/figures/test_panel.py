"""Means and deviations of a series are over the seeds that have a value."""

import math

import numpy as np
import pytest

from ewc_paper.figures.panel import Series, by_seed
from ewc_paper.figures.style import LOOKS


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_left_out_of_the_mean() -> None:
    values = {"seed 0": [1.0, 2.0, math.nan], "seed 1": [3.0, math.nan, math.nan]}
    series = Series("EWC", LOOKS["ewc"], [0, 1, 2], values)
    np.testing.assert_array_equal(series.mean, [2.0, 2.0, math.nan])
    assert series.deviation is not None
    np.testing.assert_allclose(series.deviation, [math.sqrt(2), math.nan, math.nan])


def test_one_seed_has_no_deviation() -> None:
    series = Series("EWC", LOOKS["ewc"], [0, 1], {"seed 0": [1.0, 2.0]})
    assert series.deviation is None
    assert series.mean.tolist() == [1.0, 2.0]


def test_a_seed_that_has_not_come_so_far_keeps_its_own_line() -> None:
    points = {1: {"seed 0": 10.0, "seed 1": 11.0}, 2: {"seed 1": 21.0}}
    found = by_seed(points)
    assert found["seed 1"] == [11.0, 21.0]
    assert found["seed 0"][0] == 10.0
    assert math.isnan(found["seed 0"][1])
