"""Weights in float32 rest at the minimum, and those in bfloat16 as the page on warnings says."""

import pytest
import torch
from torch.optim import SGD

import ewc
from benchmarks import rounding


@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_float32_weights_rest_at_the_minimum(how: str) -> None:
    assert rounding.rest_point(SGD, 3e-2, torch.float32, how, 1000) == pytest.approx(0.5, abs=0.02)


def test_small_pulls_on_bfloat16_weights_are_lost_unless_they_are_in_the_gradient() -> None:
    with pytest.warns(ewc.EWCWarning, match="'weight' is kept in bfloat16"):
        proximal = rounding.rest_point(SGD, 3e-3, torch.bfloat16, "proximal", 3000)
    assert proximal > 0.6
    gradient = rounding.rest_point(SGD, 3e-3, torch.bfloat16, "gradient", 3000)
    assert gradient == pytest.approx(0.5, abs=0.03)


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rounding, "rest_point", lambda *arguments: 0.5)
    rounding.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(rounding.OPTIMIZERS)
    assert lines[-1].split() == ["Adam", "0.001", "0.50", "0.50", "0.50", "0.50"]
