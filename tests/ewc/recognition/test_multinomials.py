"""Dirichlet-multinomials over pixels, against products of fractions."""

from math import log

import numpy as np
import pytest

from ewc.recognition.multinomials import SUM_BY_PIXEL_ABOVE, Multinomials, WindowCounts

PIXELS, LEVELS, PRIOR, INDEPENDENT = 3, 4, 0.5, 1.2
FRAMES = np.array([[0, 1, 2], [0, 1, 3], [0, 0, 2], [3, 1, 2]])


def learned(models: Multinomials, model: int, frames: np.ndarray) -> None:
    window = WindowCounts(PIXELS * LEVELS)
    for frame in frames:
        window.add(models.cells(frame))
    models.learn(model, window)


def slow_log_predictive(frame: np.ndarray, seen: np.ndarray) -> float:
    return (
        INDEPENDENT
        / PIXELS
        * sum(
            log(
                (sum(other[x] == frame[x] for other in seen) + PRIOR / LEVELS) / (len(seen) + PRIOR)
            )
            for x in range(PIXELS)
        )
    )


def test_a_frame_is_predicted_from_the_frames_learned() -> None:
    models = Multinomials(2, PIXELS, LEVELS, PRIOR, INDEPENDENT)
    learned(models, 0, FRAMES[:3])
    got = models.log_predictive(models.cells(FRAMES[3]))
    expected = [slow_log_predictive(FRAMES[3], FRAMES[:3]), INDEPENDENT * log(1 / LEVELS)]
    assert got == pytest.approx(expected, rel=1e-6)


def test_evidence_counts_as_if_every_model_had_learned_it() -> None:
    models = Multinomials(2, PIXELS, LEVELS, PRIOR, INDEPENDENT)
    learned(models, 0, FRAMES[:1])
    window = WindowCounts(PIXELS * LEVELS)
    for frame in FRAMES[1:3]:
        window.add(models.cells(frame))
    got = models.log_predictive(models.cells(FRAMES[3]), window)
    expected = [slow_log_predictive(FRAMES[3], seen) for seen in (FRAMES[:3], FRAMES[1:3])]
    assert got == pytest.approx(expected, rel=1e-6)
    assert models.frames.tolist() == [1, 0]


def test_an_added_model_is_untouched() -> None:
    models = Multinomials(1, PIXELS, LEVELS, PRIOR, INDEPENDENT)
    learned(models, 0, FRAMES)
    models.add()
    assert len(models) == 2
    assert models.counts[0].sum() == FRAMES.size
    assert not models.counts[1].any()


def test_a_frame_counts_as_no_more_pixels_than_it_has() -> None:
    models = Multinomials(1, PIXELS, LEVELS, PRIOR, independent=100)
    got = models.log_predictive(models.cells(FRAMES[0]))
    assert got == pytest.approx([PIXELS * log(1 / LEVELS)], rel=1e-6)


@pytest.mark.parametrize("pixels", [1024, 1025])
def test_many_models_predict_as_each_of_them_alone(pixels: int) -> None:
    """Above `SUM_BY_PIXEL_ABOVE` counts the sum goes another way than below."""
    random, total = np.random.default_rng(0), 80
    assert total * pixels > SUM_BY_PIXEL_ABOVE
    many = Multinomials(1, pixels, LEVELS, PRIOR, INDEPENDENT)
    window = WindowCounts(pixels * LEVELS)
    window.add(many.cells(random.integers(0, LEVELS, pixels)))
    frame = many.cells(random.integers(0, LEVELS, pixels))
    alone = []
    for model in range(total):
        one = Multinomials(1, pixels, LEVELS, PRIOR, INDEPENDENT)
        seen = WindowCounts(pixels * LEVELS)
        for _ in range(model):
            seen.add(many.cells(random.integers(0, LEVELS, pixels)))
        one.learn(0, seen)
        many.learn(model, seen)
        many.add()
        alone.append(one.log_predictive(frame, window)[0])
    assert many.log_predictive(frame, window)[:-1] == pytest.approx(alone, rel=1e-7)
    assert many.frames.tolist() == [*range(total), 0]
