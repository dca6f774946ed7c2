"""Frames are averaged down by whole squares and rounded to levels."""

import numpy as np
import pytest

from ewc.recognition.frames import channel_of_pixels, check_frame, downscaled, to_levels

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("shape", "factor", "small"),
    [
        ((1, 84, 84), 2, (1, 42, 42)),
        ((210, 160), 5, (42, 32)),
        ((3, 7, 8), 2, (3, 3, 4)),
    ],
)
def test_downscaling_takes_the_mean_over_squares(
    shape: tuple[int, ...], factor: int, small: tuple[int, ...]
) -> None:
    frame = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    expected = np.empty(small)
    for index in np.ndindex(*small):
        row, column = (factor * i for i in index[-2:])
        square = frame[(*index[:-2], slice(row, row + factor), slice(column, column + factor))]
        expected[index] = np.floor(square.astype(np.float64).mean())
    assert np.array_equal(downscaled(frame, max(small[-2:])), expected)


@pytest.mark.parametrize(
    ("shape", "small"), [((2, 200), (1, 40)), ((1, 100), (1, 33)), ((3, 100, 1), (3, 33, 1))]
)
def test_a_side_shorter_than_a_square_is_averaged_whole(
    shape: tuple[int, ...], small: tuple[int, ...]
) -> None:
    frame = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    got = downscaled(frame, 42)
    assert got.shape == small
    first = frame[..., : shape[-2] // small[-2], : shape[-1] // small[-1]]
    assert np.array_equal(got[..., 0, 0], np.floor(first.mean(axis=(-2, -1))))


@pytest.mark.parametrize("colors", [1, 3, 4])
@pytest.mark.parametrize("front", [(), (2,)])
def test_colors_in_the_last_axis_are_averaged_apart(colors: int, front: tuple[int, ...]) -> None:
    frame = RANDOM.integers(0, 256, (*front, 210, 160, colors), dtype=np.uint8)
    expected = [downscaled(frame[..., color], 42) for color in range(colors)]
    assert np.array_equal(downscaled(frame, 42), np.stack(expected, axis=-1))


def test_what_is_small_enough_stays_as_it_is() -> None:
    frame = RANDOM.integers(0, 256, (10, 10, 10), dtype=np.uint8)
    assert downscaled(frame, 42) is frame


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((2, 3), [0] * 6),
        ((2, 2, 3), [0] * 6 + [1] * 6),
        ((2, 2, 1, 3), [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3),
        ((5, 6, 3), [0, 1, 2] * 30),
    ],
)
def test_the_channel_of_a_pixel_is_its_color_or_its_plane(
    shape: tuple[int, ...], channels: list[int]
) -> None:
    assert channel_of_pixels(np.zeros(shape, dtype=np.uint8)).tolist() == channels


@pytest.mark.parametrize("levels", [2, 3, 8, 256])
def test_levels_are_even_parts_of_the_range(levels: int) -> None:
    frame = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert to_levels(frame, levels).tolist() == [value * levels // 256 for value in range(256)]


@pytest.mark.parametrize(
    ("frame", "error", "said"),
    [
        ([[1, 2]], TypeError, "expected a frame as a numpy array, got list"),
        (np.zeros((4, 4)), TypeError, r"expected a frame of uint8 \(0 to 255\), got float64"),
        (np.zeros(4, dtype=np.uint8), ValueError, r"got the shape \(4,\)"),
        (np.zeros((0, 4), dtype=np.uint8), ValueError, r"got the shape \(0, 4\)"),
    ],
)
def test_what_is_no_frame_is_refused(frame: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        check_frame(frame, None)


def test_a_frame_of_another_shape_than_those_before_is_refused() -> None:
    frame = np.zeros((4, 4), dtype=np.uint8)
    check_frame(frame, (4, 4))
    with pytest.raises(ValueError, match=r"frames of shape \(4, 5\) as before, got \(4, 4\)"):
        check_frame(frame, (4, 5))
