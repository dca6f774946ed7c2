"""The settings that a recognizer accepts, and how they are described."""

import math
from dataclasses import Field, astuple, fields
from typing import Any

import numpy as np
import pytest

from ewc.recognition.config import RecognizerConfig, ScreenRecognizerConfig
from ewc.recognition.forget_me_not import ForgetMeNot
from ewc.recognition.screen_recognizer import ScreenRecognizer


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
    config = RecognizerConfig(np.int64(8), np.float32(0.5), np.uint8(4), 3, 15, 42)  # type: ignore[arg-type]
    assert config == RecognizerConfig(8, 0.5, 4, 3, 15.0, 42)
    assert type(config.levels) is type(config.window) is int
    assert type(config.prior) is type(config.independent) is float


def test_the_defaults_are_those_of_the_recognizers() -> None:
    assert ForgetMeNot().config == RecognizerConfig()
    assert ScreenRecognizer().config == ScreenRecognizerConfig()
    assert astuple(RecognizerConfig()) == (16, 1.0, 4, 3, math.inf, 42)


@pytest.mark.parametrize(
    ("recognizer", "settings"),
    [(ForgetMeNot, RecognizerConfig), (ScreenRecognizer, ScreenRecognizerConfig)],
)
def test_every_setting_is_an_argument_and_described_once(recognizer: type, settings: type) -> None:
    described = " ".join((recognizer.__doc__ or "").split())
    for setting in fields(settings):
        assert set(setting.metadata) == {"help", "low", "high"}
        assert f"{setting.name}: {setting.metadata['help']}." in described
        value = setting.metadata["low"]
        assert getattr(recognizer(**{setting.name: value}).config, setting.name) == value


@pytest.mark.parametrize("setting", fields(RecognizerConfig), ids=lambda setting: setting.name)
def test_the_limits_themselves_are_allowed(setting: Field[Any]) -> None:
    for limit in (setting.metadata["low"], setting.metadata["high"]):
        if limit is not None:
            assert getattr(RecognizerConfig(**{setting.name: limit}), setting.name) == limit
