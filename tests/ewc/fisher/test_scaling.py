"""The floor and the trace of a Fisher."""

import pytest
import torch

from ewc.fisher.scaling import shaped, trace

FISHER = {"w": torch.tensor([[0.0, 2.0], [4.0, 6.0]]), "b": torch.tensor([0.0, 1.0])}


def test_the_floor_adds_a_fraction_of_each_parameter_s_mean() -> None:
    floored = shaped(FISHER, floor=0.1)
    torch.testing.assert_close(floored["w"], FISHER["w"] + 0.3)
    torch.testing.assert_close(floored["b"], FISHER["b"] + 0.05)


def test_the_trace_is_fixed_after_the_floor() -> None:
    normalized = shaped(FISHER, floor=0.1, normalize=7.0)
    assert trace(normalized) == pytest.approx(7.0)
    ratio = normalized["w"][1, 1] / normalized["w"][0, 0]
    assert float(ratio) == pytest.approx(6.3 / 0.3)


def test_a_fisher_of_zeros_stays_one() -> None:
    zeros = {"w": torch.zeros(3)}
    torch.testing.assert_close(shaped(zeros, floor=0.1, normalize=5.0), zeros)
