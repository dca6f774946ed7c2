"""Means are over the seeds that did not diverge, and a table says how many did."""

import math

import pytest

from ewc_paper.figures.seeds import mean_and_deviation


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
