"""Sums become a mean over positions or samples, or an error."""

import pytest
import torch

import ewc
from ewc.fisher.fisher_sums import FisherSums
from ewc.processes import Processes


def sums_of(values: list[float]) -> FisherSums:
    sums = FisherSums({"w": torch.tensor(values)})
    sums.count(1, 3)
    sums.count(1, 1)
    return sums


def test_the_mean_is_over_positions_or_over_samples():
    for positions, expected in (("mean", [1.0, 2.0]), ("sum", [2.0, 4.0])):
        mean = sums_of([4.0, 8.0]).mean(Processes(), None, positions)
        assert mean["w"].tolist() == expected


def test_fewer_samples_than_asked_for_are_named():
    with pytest.warns(ewc.EWCWarning, match="ended after 2 samples, before max_samples=5"):
        sums_of([1.0]).mean(Processes(), 5, "mean")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_mean_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="the Fisher of 'w' is not finite"):
        sums_of([1.0, value]).mean(Processes(), None, "mean")


def test_no_samples_and_no_positions_are_refused():
    sums = FisherSums({"w": torch.ones(1)})
    with pytest.raises(ValueError, match="batches is empty"):
        sums.mean(Processes(), None, "mean")
    sums.count(2, 0)
    with pytest.raises(ValueError, match="no position counts"):
        sums.mean(Processes(), None, "mean")
