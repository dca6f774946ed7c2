"""What a recogniser can be made with."""

import math
from typing import Any

import numpy as np
import pytest

from ewc.recognition.config import Settings
from ewc.recognition.forget_me_not import ForgetMeNot


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"levels": 1}, "expected levels of at least 2 and at most 256, got 1"),
        ({"levels": 257}, "expected levels of at least 2 and at most 256, got 257"),
        ({"prior": 0.0}, r"expected prior of at least 1e-12 and at most 1e\+12, got 0.0"),
        ({"prior": math.inf}, "expected prior .*, got inf"),
        ({"prior": math.nan}, "expected prior .*, got nan"),
        ({"independent": 0}, "expected independent of at least 1e-12, got 0"),
        ({"independent": math.nan}, "expected independent .*, got nan"),
        ({"window": 0}, "expected window of at least 1, got 0"),
        ({"wins": 0}, "expected wins of at least 1, got 0"),
        ({"side": 0}, "expected side of at least 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        ForgetMeNot(**settings)


@pytest.mark.parametrize("name", ["levels", "window", "wins", "side"])
@pytest.mark.parametrize("value", [2.5, 4.0, "4", None, True])
def test_what_is_no_integer_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^expected {name} as an integer, got {value!r}$"):
        ForgetMeNot(**{name: value})


@pytest.mark.parametrize("name", ["prior", "independent"])
@pytest.mark.parametrize("value", ["1", None, True])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^expected {name} as a number, got {value!r}$"):
        ForgetMeNot(**{name: value})


def test_numbers_of_numpy_become_plain() -> None:
    settings = Settings(np.int64(8), np.float32(0.5), np.uint8(4), 3, 15, 42)  # type: ignore[arg-type]
    assert settings == Settings(8, 0.5, 4, 3, 15.0, 42)
    assert type(settings.levels) is type(settings.window) is int
    assert type(settings.prior) is type(settings.independent) is float
