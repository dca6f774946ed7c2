"""The overlap of two Fishers, beside the matrix form of the paper's appendix; floor and trace."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ewc
from ewc.fisher.overlap import shaped


def frechet_overlap(f1: torch.Tensor, f2: torch.Tensor) -> float:
    """1 − ½ tr(F̂₁ + F̂₂ − 2 (F̂₁F̂₂)^½), with whole matrices."""
    a, b = torch.diag(f1 / f1.sum()), torch.diag(f2 / f2.sum())
    values, vectors = torch.linalg.eigh(a @ b)
    root = vectors @ torch.diag(values.clamp_min(0).sqrt()) @ vectors.T
    return float(1 - 0.5 * torch.trace(a + b - 2 * root))


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=2, max_size=8))
def test_equals_the_matrix_form(entries: list[tuple[float, float]]) -> None:
    f1, f2 = torch.tensor(entries, dtype=torch.float64).unbind(1)
    split = {"a": f1[:1], "b": f1[1:]}, {"a": f2[:1], "b": f2[1:]}
    assert ewc.fisher_overlap(*split) == pytest.approx(frechet_overlap(f1, f2), abs=1e-9)


def test_bounds_and_scale() -> None:
    f1, f2 = torch.tensor([1.0, 0.0, 3.0]), torch.tensor([0.0, 2.0, 0.0])
    assert ewc.fisher_overlap({"w": f1}, {"w": f2}) == 0.0
    assert ewc.fisher_overlap({"w": f1}, {"w": 7 * f1}) == pytest.approx(1.0)


def test_each_layer_is_scaled_by_itself() -> None:
    f1 = {"0.weight": torch.tensor([1.0, 1.0]), "0.bias": torch.ones(1), "1.weight": torch.ones(2)}
    f2 = {
        "0.weight": torch.tensor([9.0, 9.0]), "0.bias": torch.full((1,), 9.0),
        "1.weight": torch.tensor([1.0, 0.0]),
    }  # fmt: skip
    overlaps = ewc.fisher_overlap_by_layer(f1, f2)
    assert overlaps == pytest.approx({"0": 1.0, "1": 0.5**0.5})


def test_a_layer_that_a_task_does_not_use_is_left_out() -> None:
    f1 = {"a.w": torch.ones(2), "b.w": torch.zeros(2)}
    assert set(ewc.fisher_overlap_by_layer(f1, f1)) == {"a"}


@pytest.mark.parametrize(
    ("f1", "f2", "message"),
    [
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, "only one of them has"),
        ({}, {}, "expected"),
        ({"a": torch.ones(1)}, {"a": torch.ones(2)}, r"\(1,\) in one Fisher and \(2,\)"),
        ({"a": torch.ones(1)}, {"a": -torch.ones(1)}, "negative"),
        ({"a": torch.ones(1)}, {"a": torch.zeros(1)}, "zero everywhere"),
    ],
)
def test_what_does_not_fit(f1: dict, f2: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ewc.fisher_overlap(f1, f2)


def test_tiny_fishers_do_not_underflow() -> None:
    tiny = torch.full((3,), 1e-300, dtype=torch.float64)
    assert ewc.fisher_overlap({"w": tiny}, {"w": 2 * tiny}) == pytest.approx(1.0)
    assert ewc.fisher_overlap({"w": tiny}, {"w": tiny * torch.tensor([1, 0, 0])}) == pytest.approx(
        3**-0.5
    )


def test_a_fisher_of_zeros_stays_one() -> None:
    zeros = {"w": torch.zeros(3)}
    torch.testing.assert_close(shaped(zeros, floor=0.1, normalize=5.0), zeros)
