"""Trainers in two processes (DistributedDataParallel, gloo) end where one process does."""

from pathlib import Path

import pytest
import torch
from support.ranks import run_ranks
from support.trainer_ranks import tune
from support.trainers import data, plain_loop, small_net, weights, with_lora, with_memory

from ewc.integrations.peft import LoraEWC


def test_two_ranks_with_kronecker_factors_end_where_one_does(tmp_path: Path) -> None:
    first, second = run_ranks(tune, 2, tmp_path)
    assert first["world"] == second["world"] == 2
    assert first["wrapped"]
    expected = weights(plain_loop(with_memory(curvature="kronecker")))
    without = weights(plain_loop(lambda *_: None))
    for name, value in expected.items():
        # AdamW enlarges the rounding of sums over two ranks where gradients are near zero.
        torch.testing.assert_close(first["weights"][name], value, atol=1e-4, rtol=0)
        assert torch.equal(first["weights"][name], second["weights"][name])
    assert max(float((expected[n] - without[n]).abs().max()) for n in expected) > 1e-2
    assert first["rises"] == second["rises"]
    assert all(rise > 0 for rise in first["rises"])

    memory = LoraEWC(with_lora(small_net()), curvature="kronecker")
    x, y = data()
    fisher = memory.consolidate([(x[[0, 1, 2, 3, 4]], y[[0, 1, 2, 3, 4]])], kind="empirical")
    for name, own in fisher.factors.items():
        inputs, outputs, at_zero = first["adapters"][name]
        torch.testing.assert_close(inputs, own.inputs)
        torch.testing.assert_close(outputs, own.outputs)
        assert at_zero == pytest.approx(own.at_zero)
        assert all(
            torch.equal(a, b)
            for a, b in zip(first["adapters"][name][:2], second["adapters"][name][:2], strict=True)
        )
