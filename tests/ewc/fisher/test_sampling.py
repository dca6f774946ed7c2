"""Labels drawn from the model follow its predictions, however many classes there are."""

import pytest
import torch

from ewc.fisher.sampling import BLOCK, draw_classes, draw_normal, draw_uniform


@pytest.mark.parametrize("classes", [3, 300, 1000])
def test_draws_follow_the_probabilities(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(classes, generator=generator)).softmax(0)
    probabilities[classes // 2] = 0
    draws = 200_000
    drawn = draw_classes(probabilities.expand(draws, classes), generator)
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
            assert bool((draw_classes(probabilities, None) == certain).all())


@pytest.mark.parametrize("classes", [4, 3 * BLOCK + 7])
def test_draws_do_not_depend_on_how_samples_are_split(classes: int) -> None:
    probabilities = torch.rand(10, classes).softmax(-1)
    whole = draw_classes(probabilities, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    parts = [draw_classes(part, generator) for part in probabilities.split(3)]
    assert torch.equal(torch.cat(parts), whole)


def test_uniform_numbers_are_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.zeros(shape))
    assert bool((draw_uniform(torch.Size((3,)), torch.zeros(3), None) == 1).all())


def test_normal_numbers_have_mean_zero_and_variance_one() -> None:
    drawn = draw_normal(torch.zeros(100_000), torch.Generator().manual_seed(0))
    assert abs(float(drawn.mean())) < 0.02
    assert abs(float(drawn.var()) - 1) < 0.02
