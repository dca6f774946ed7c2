"""What pulls at one moment: the penalty, and the sum of several memories."""

import pytest
import torch
from torch import nn

from ewc.pull_state import PullState, combined
from ewc.wells import Well


def state(parameter: nn.Parameter, precision: float, anchor: float, strength: float, name="w"):
    tensors = (torch.full_like(parameter, value) for value in (precision, anchor))
    well = Well(*({name: tensor.detach()} for tensor in tensors))
    return PullState({name: parameter}, well, strength)


def test_the_penalty_is_half_the_strength_times_the_energy():
    parameter = nn.Parameter(torch.tensor([1.0, 4.0]))
    assert state(parameter, 3.0, 2.0, strength=10.0).penalty().item() == 5.0 * 3.0 * (1 + 4)


@pytest.mark.parametrize("strengths", [(1.0, 1.0), (1e6, 1e-3), (0.5, 2.0)])
def test_the_penalty_of_the_sum_is_the_sum_of_the_penalties(strengths):
    parameter = nn.Parameter(torch.randn(3, dtype=torch.float64))
    states = [state(parameter, 2.0 + n, -1.0 * n, strength) for n, strength in enumerate(strengths)]
    torch.testing.assert_close(combined(states).penalty(), sum(one.penalty() for one in states))


def test_parameters_are_matched_by_identity_and_not_by_name():
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    states = [
        state(first, 1.0, 0.0, 1.0, "body.w"),
        state(first, 2.0, 0.0, 1.0, "w"),
        state(second, 4.0, 0.0, 1.0, "w"),
    ]
    total = combined(states)
    assert len(total.well.precision) == 2
    by_id = {id(total.parameters[name]): p for name, p in total.well.precision.items()}
    assert by_id[id(first)].tolist() == [3.0, 3.0]
    assert by_id[id(second)].tolist() == [4.0, 4.0]
    torch.testing.assert_close(total.penalty(), sum(one.penalty() for one in states))


def test_a_computed_weight_is_moved_by_its_sources_also_in_a_sum():
    a, b = (nn.Parameter(torch.randn(2)) for _ in range(2))
    computed = state(a * b, 2.0, 0.5, 3.0)._replace(sources={"w": (a, b)})
    assert computed.moved_by("w") == (a, b)
    plain = state(a, 1.0, 0.0, 1.0)
    assert plain.moved_by("w") == (a,)
    total = combined([computed, plain])
    assert [total.moved_by(name) for name in total.well.precision] == [(a, b), (a,)]
    torch.testing.assert_close(total.penalty(), computed.penalty() + plain.penalty())
