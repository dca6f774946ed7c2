"""Means and bands are over the seeds that did not diverge, and a table says how many did."""

import math

import numpy as np
import pytest

from ewc_paper.figures import style
from ewc_paper.figures.seeds import mean_and_deviation, plot_band


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([97.0], "97.00"),
        ([97.0, 98.0], "97.50 ± 0.71"),
        ([97.0, math.nan], "97.00 (1 of 2 diverged)"),
        ([97.0, 98.0, math.inf], "97.50 ± 0.71 (1 of 3 diverged)"),
        ([math.nan, math.nan], "diverged"),
    ],
)
def test_means_are_of_finite_values(values: list[float], text: str) -> None:
    assert mean_and_deviation(values) == text


@pytest.mark.filterwarnings("error")
def test_the_band_is_one_standard_deviation_around_the_mean() -> None:
    ax = style.axes()
    values = [[1.0, 2.0, math.nan], [3.0, math.nan, math.nan]]
    plot_band(ax, [0, 1, 2], values, color="red")
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [2.0, 2.0, math.nan])
    (band,) = ax.collections
    ends = [y for path in band.get_paths() for x, y in path.vertices if x == 0]
    assert (min(ends), max(ends)) == pytest.approx((2 - math.sqrt(2), 2 + math.sqrt(2)))
    style.plt.close("all")


def test_one_seed_has_no_band() -> None:
    ax = style.axes()
    plot_band(ax, [0, 1], [[1.0, 2.0]], color="red")
    assert len(ax.collections) == 0
    style.plt.close("all")
