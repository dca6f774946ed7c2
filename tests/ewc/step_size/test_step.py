"""Step sizes are read from the state of an optimizer, and not from a device."""

import pytest
import torch

from ewc.step_size.step import SMALLEST_EPS, StepSize, bias_corrections


def test_step_counts_on_a_device_are_not_read() -> None:
    """The meta device has no values: reading one would raise."""
    states = [{"step": torch.ones((), device="meta")}, {}]
    corrections = bias_corrections(0.999, states)
    assert [one.device.type for one in corrections] == ["meta", "meta"]


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999])
def test_bias_corrections_on_a_device_are_those_of_the_cpu(
    beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [{"step": torch.tensor(float(step))} for step in (1, 2, 1000)] + [{}]
    expected = bias_corrections(beta, states)
    monkeypatch.setattr("ewc.step_size.step.on_cpu", lambda states: False)
    found = [float(one) for one in bias_corrections(beta, states)]
    assert found[:3] == pytest.approx(expected[:3], rel=1e-5)
    assert float(bias_corrections(beta, [{"step": torch.tensor(0.0)}])[0]) > 0  # skipped so far


def test_a_scale_of_squares_is_rooted_and_eps_is_added() -> None:
    squares = [torch.tensor([4.0, 0.0]), torch.tensor([9.0], dtype=torch.bfloat16)]
    step = StepSize(0.5, squares, 0.1).rooted()
    assert step.eps is None
    assert [one.dtype for one in step.scale] == [torch.float32, torch.float32]
    torch.testing.assert_close(torch.cat(step.scale), torch.tensor([2.1, 0.1, 3.1]))
    assert StepSize(0.5).rooted() == StepSize(0.5)
    assert StepSize(0.5, squares).rooted().scale is squares


def test_the_stiffest_pull_leaves_weights_alone_that_nothing_holds() -> None:
    softness = StepSize(1e10).softness(1e30)
    smallest = torch.tensor(SMALLEST_EPS) * softness
    assert float(0 / (0 + smallest)) == 0.0
    assert StepSize(0.5).softness(4.0) == 0.5
