"""Cotangents keep their digits where a label is nearly certain, and give the whole expectation."""

import pytest
import torch

from ewc.fisher.likelihood import check_options, cotangents, count_positions


def test_exact_cotangents_are_a_root_of_the_expectation() -> None:
    """Σ_k v_k v_kᵀ = diag(p) − ppᵀ, one backward pass less than there are classes."""
    logits = torch.randn(3, 4, dtype=torch.float64)
    vectors = torch.stack(
        list(
            cotangents(
                logits, None, None, kind="exact", likelihood="categorical", generator=None, where=""
            )
        )
    )
    assert len(vectors) == 3
    p = logits.softmax(-1)
    expected = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    torch.testing.assert_close(torch.einsum("kni,knj->nij", vectors, vectors), expected)


def test_positions_that_count() -> None:
    logits, labels = torch.randn(2, 3, 4), torch.tensor([[1, -100, 2], [-100, -100, 0]])
    assert count_positions(logits, labels, None, "categorical") == 3
    assert count_positions(logits, None, None, "categorical") == 6
    assert count_positions(logits, None, labels > 0, "categorical") == 2
    assert count_positions(logits[:, 0], None, None, "gaussian") == 2
    assert count_positions(logits, None, None, lambda outputs, targets: outputs.sum((1, 2))) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positions_are_counted_exactly_in_half_precision(dtype: torch.dtype) -> None:
    labels = torch.zeros(33, 2001, dtype=torch.long)
    labels[:, 0] = -100
    logits = torch.zeros(33, 2001, 2, dtype=dtype)
    assert count_positions(logits, labels, None, "categorical") == 33 * 2000
    assert count_positions(logits, None, labels == 0, "categorical") == 33 * 2000


def test_unknown_options_suggest_the_closest() -> None:
    with pytest.raises(ValueError, match=r"positions must be one of mean, sum.*'mean'\?"):
        check_options("exact", "categorical", "means")


@pytest.mark.parametrize("drawn", [0.0, 1 - 2.0**-24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_noise_is_finite_at_both_ends(
    drawn: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, drawn))
    (noise,) = cotangents(
        torch.zeros(2, 3, dtype=dtype), None, None,
        kind="sampled", likelihood="gaussian", generator=None, where="",
    )  # fmt: skip
    assert bool(noise.isfinite().all())
    assert bool((noise.abs() > 5).all())


def test_saturated_logits_keep_their_variance() -> None:
    """Where σ(x) rounds to one, 1 − σ(x) does not round to zero; the signs are alike."""
    logits = torch.tensor([[17.0], [30.0], [-17.0], [-30.0], [0.3]])
    targets = torch.tensor([[1.0], [1.0], [0.0], [0.0], [1.0]])
    for kind in ("exact", "empirical"):
        (vector,) = cotangents(
            logits, targets, None, kind=kind, likelihood="bernoulli", generator=None, where=""
        )
        (exact,) = cotangents(
            logits.double(), targets.double(), None, kind=kind, likelihood="bernoulli",
            generator=None, where="",
        )  # fmt: skip
        assert float(vector.abs().min()) > 0
        torch.testing.assert_close(vector.double(), exact, rtol=1e-5, atol=0)


def test_a_class_that_is_nearly_certain_keeps_its_gradient() -> None:
    logits, label = torch.tensor([[0.0, 20.0, 1.0], [0.0, -3.0, 18.0]]), torch.tensor([1, 2])
    for kind in ("sampled", "empirical"):
        vectors = []
        for values in (logits, logits.double()):
            generator = torch.Generator().manual_seed(0)
            vectors += cotangents(
                values, label, None, kind=kind, likelihood="categorical", generator=generator,
                where="",
            )  # fmt: skip
        assert float(vectors[0][0, 1]) > 0
        torch.testing.assert_close(vectors[0].double(), vectors[1], rtol=1e-5, atol=0)


def test_a_mask_that_hides_positions_must_fit_the_outputs() -> None:
    """Of audio, the mask has samples and the outputs have frames; of prompt tuning, more tokens."""
    mask = torch.ones(2, 8, dtype=torch.bool)
    assert count_positions(torch.zeros(2, 5, 3), None, mask, "categorical") == 10
    mask[1, 6:] = False
    assert count_positions(torch.zeros(2, 3), None, mask, "categorical") == 2  # of whole sequences
    assert count_positions(torch.zeros(2, 8, 3), None, mask, "categorical") == 14
    mask[0, 6:] = False
    assert (
        count_positions(torch.zeros(2, 6, 3), None, mask, "categorical") == 12
    )  # cut by the model
    with pytest.raises(ValueError, match=r"has shape \(2, 8\) and hides positions, .* \(2, 5\)"):
        count_positions(torch.zeros(2, 5, 3), None, mask, "categorical")
