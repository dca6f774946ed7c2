"""Labels drawn from the model follow its probabilities, however many classes there are."""

import pytest
import torch

from ewc.fisher.likelihood import _draw_class, cotangents


@pytest.mark.parametrize("classes", [3, 300, 1000])
def test_draws_follow_the_probabilities(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(classes, generator=generator)).softmax(0)
    probabilities[classes // 2] = 0
    draws = 200_000
    drawn = _draw_class(probabilities.expand(draws, classes), generator)
    counts = torch.bincount(drawn, minlength=classes).double()
    expected = draws * probabilities.double() / probabilities.double().sum()
    assert counts[classes // 2] == 0
    common = expected > 20
    chi2 = float(((counts - expected)[common] ** 2 / expected[common]).sum())
    degrees = int(common.sum())
    assert chi2 < degrees + 5 * (2 * degrees) ** 0.5


def test_a_certain_class_is_always_drawn() -> None:
    for classes in (4, 1000):
        for certain in (0, classes // 3, classes - 1):
            probabilities = torch.zeros(100, classes)
            probabilities[:, certain] = 1
            assert bool((_draw_class(probabilities, None) == certain).all())


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
