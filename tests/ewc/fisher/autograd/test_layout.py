"""Where the samples are: taking a tensor apart by sample, and layouts by stride."""

import pytest
import torch

from ewc.fisher.autograd.layout import SampleLayout, at_stride, possible_layouts

BATCH = 3


@pytest.mark.parametrize("outer", [1, 2])
@pytest.mark.parametrize("inner", [1, 4])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_by_sample_is_what_an_index_says(dim: int, outer: int, inner: int) -> None:
    shape = [5, 5, 5]
    shape[dim] = outer * BATCH * inner
    tensor, layout = torch.randn(shape), SampleLayout(dim, outer, inner)
    apart = layout.by_sample(tensor, BATCH)
    for n in range(BATCH):
        rows = [i for i in range(shape[dim]) if i // inner % BATCH == n]
        assert torch.equal(apart[n], tensor.index_select(dim, torch.tensor(rows)))


def test_layouts_by_stride_are_the_only_ones() -> None:
    for shape in [(3,), (6, 2), (2, 6), (2, 3, 4), (4, 9, 1), (1, 12, 5), (3, 3, 3)]:
        size = torch.Size(shape).numel()
        for stride in range(1, size + 1):
            found = at_stride(stride, shape, BATCH)
            fitting = [one for one in possible_layouts(shape, BATCH) if one.stride(shape) == stride]
            assert fitting == ([] if found is None else [found])


def test_a_factor_spread_over_two_dimensions_has_no_layout() -> None:
    """Six samples as two rows of three."""
    assert at_stride(1, (2, 3), 6) is None
