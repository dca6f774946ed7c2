"""The type that sums are kept in."""

import pytest
import torch

from ewc.dtypes import at_least_float32, widened


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
        (torch.complex128, torch.complex128),
    ],
)
def test_types_are_raised_to_float32_and_not_lowered(
    dtype: torch.dtype, expected: torch.dtype
) -> None:
    assert at_least_float32(dtype) == expected
    assert widened(torch.ones(2, dtype=dtype)).dtype == expected


def test_a_tensor_that_is_wide_enough_is_not_copied() -> None:
    tensor = torch.ones(2)
    assert widened(tensor) is tensor
