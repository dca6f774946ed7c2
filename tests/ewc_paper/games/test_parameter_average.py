"""The average against sums of what was seen."""

import copy

import pytest
import torch
from torch import Tensor

from ewc_paper.games.parameter_average import ParameterAverage, copy_parameters


def make_values(count: int) -> list[list[Tensor]]:
    """The two parameters after each of some updates."""
    generator = torch.Generator().manual_seed(0)
    return [
        [torch.randn(3, generator=generator), torch.randn(2, 2, generator=generator)]
        for _ in range(count)
    ]


def follow(average: ParameterAverage, values: list[list[Tensor]]) -> list[Tensor]:
    """The parameters after all updates, each of which was averaged."""
    parameters = [torch.zeros(3), torch.zeros(2, 2)]
    for value in values:
        copy_parameters(value, parameters)
        average.update(parameters)
    return parameters


def expected(values: list[list[Tensor]], span: int) -> list[Tensor]:
    """A plain mean of the first, then a running one."""
    mean = [torch.stack(value[:span]).mean(0) for value in zip(*values, strict=True)]
    for value in values[span:]:
        mean = [m + (v - m) / span for m, v in zip(mean, value, strict=True)]
    return mean


@pytest.mark.parametrize("updates", [1, 2, 4, 9])
def test_it_is_a_plain_mean_and_then_a_running_one(updates: int) -> None:
    average, values = ParameterAverage(span=4), make_values(updates)
    parameters = follow(average, values)
    average.adopt(parameters)
    for one, other in zip(parameters, expected(values, 4), strict=True):
        torch.testing.assert_close(one, other)


def test_it_can_be_applied_for_a_while() -> None:
    average, values = ParameterAverage(span=4), make_values(3)
    parameters = follow(average, values)
    with average.applied(parameters):
        for one, other in zip(parameters, expected(values, 4), strict=True):
            torch.testing.assert_close(one, other)
    assert all(torch.equal(one, last) for one, last in zip(parameters, values[-1], strict=True))


@pytest.mark.parametrize("span", [0, 4])
def test_without_updates_the_parameters_stay(span: int) -> None:
    average, values = ParameterAverage(span), make_values(2)
    parameters = follow(average, values)
    average.restart()
    with average.applied(parameters):
        assert torch.equal(parameters[0], values[-1][0])
    average.adopt(parameters)
    assert torch.equal(parameters[0], values[-1][0])


def test_the_state_continues_in_another() -> None:
    first, second, values = ParameterAverage(3), ParameterAverage(3), make_values(6)
    follow(first, values[:2])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    ends = [follow(average, values[2:]) for average in (first, second)]
    for average, parameters in zip((first, second), ends, strict=True):
        average.adopt(parameters)
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
