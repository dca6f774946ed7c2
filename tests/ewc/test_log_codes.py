"""Eight bits per number: the relative error is bounded, zeros stay zeros."""

import torch

from ewc.log_codes import OCTAVES, RELATIVE_ERROR, decode, encode


def test_the_relative_error_is_bounded() -> None:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(10_000, generator=generator, dtype=torch.float64) * -OCTAVES
    values = 7.3e-5 * torch.exp2(exponents)
    values[0] = 7.3e-5
    read = decode(*encode(values)).double()
    assert encode(values)[0].dtype == torch.uint8
    assert float((read / values - 1).abs().max()) <= RELATIVE_ERROR * (1 + 1e-6)
    assert abs(float((read / values - 1).mean())) < 1e-3  # no bias
    assert RELATIVE_ERROR < 0.0447
    assert float(read[0]) == torch.tensor(7.3e-5).item()


def test_zeros_and_tiny_numbers_are_zeros() -> None:
    values = torch.tensor([0.0, 1.0, 1e-12])
    assert decode(*encode(values)).tolist() == [0.0, 1.0, 0.0]
    assert decode(*encode(torch.zeros(2, 3))).tolist() == [[0.0] * 3] * 2
    assert decode(*encode(torch.zeros(0))).numel() == 0
