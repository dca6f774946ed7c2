"""The settings of recognizers: names, defaults, help texts and limits, all in one place."""

import math
from dataclasses import Field, dataclass, field, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RecognizerConfig:
    """The settings of a `ForgetMeNot`. Values of another type, or out of range, raise.

    The metadata of each field has the keys `help`, `low` and `high` (None: no limit), so that a
    command line can be built from it.
    """

    levels: int = field(
        default=16,
        metadata={
            "help": "number of brightness levels that a pixel is rounded to",
            "low": 2,
            "high": 256,
        },
    )
    prior: float = field(
        default=1.0,
        # The product of two counts must stay in the range of float32.
        metadata={"help": "mass of the Dirichlet prior per pixel", "low": 1e-12, "high": 1e12},
    )
    window: int = field(
        default=4, metadata={"help": "observations per window", "low": 1, "high": None}
    )
    wins: int = field(
        default=3,
        metadata={
            "help": "windows in a row that the held-out model must win to become a task",
            "low": 1,
            "high": None,
        },
    )
    independent: float = field(
        default=math.inf,
        metadata={
            "help": "number of independent pixels that a frame counts as (inf: all of them)",
            "low": 1e-12,
            "high": None,
        },
    )
    side: int = field(
        default=42,
        metadata={
            "help": "larger frames are averaged down to at most this height and width",
            "low": 1,
            "high": None,
        },
    )

    def __post_init__(self) -> None:
        _check_fields(self, RecognizerConfig)  # a subclass may have more


def _setting(default: float, text: str, low: float, high: float | None = None) -> Any:
    return field(default=default, metadata={"help": text, "low": low, "high": high})


@dataclass(frozen=True)
class ScreenRecognizerConfig:
    """The settings of a `ScreenRecognizer`. Values of another type, or out of range, raise.

    The metadata of each field is as in `RecognizerConfig`.
    """

    levels: int = _setting(32, "number of brightness levels that a pixel is rounded to", 2, 256)
    stray: float = _setting(
        0.2, "probability that a pixel shows something else than its screen", 1e-3, 0.999
    )
    usual: float = _setting(
        0.0, "share of what a screen usually saves that it must save to explain a frame", 0, 1
    )
    blank: float = _setting(0.02, "frames with less information per pixel, in nats, are ignored", 0)
    evidence: float = _setting(8.0, "most evidence of one frame between two tasks, in nats", 0)
    novelty: float = _setting(3.0, "cost of an unknown frame for a known task, in nats", 0)
    switch: float = _setting(1e-3, "probability per observation that the task changes", 1e-12, 0.5)
    wait: int = _setting(5, "observations before unknown frames are given to a task", 1)
    screens: int = _setting(16, "largest number of screens per task", 1)
    shortest: int = _setting(
        250, "observations of the shortest visit to a task (0: tasks are never merged)", 0
    )
    side: int = _setting(42, "larger frames are averaged down to at most this height and width", 1)

    def __post_init__(self) -> None:
        _check_fields(self, ScreenRecognizerConfig)


def _check_fields(config: object, owner: type) -> None:
    """Check the fields that `owner` declares against the limits in their metadata."""
    for setting in fields(owner):
        value = _checked(setting, getattr(config, setting.name))
        object.__setattr__(config, setting.name, value)


def _checked(setting: Field[Any], value: Any) -> int | float:
    """Return the value as a plain int or float; raise if the type or the range is wrong."""
    if setting.type is int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"expected {setting.name} as an integer, got {value!r}")
    elif isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"expected {setting.name} as a number, got {value!r}")
    low, high = setting.metadata["low"], setting.metadata["high"]
    if not low <= value or (high is not None and value > high):
        at_most = "" if high is None else f" and at most {high:g}"
        raise ValueError(f"expected {setting.name} of at least {low:g}{at_most}, got {value}")
    return int(value) if setting.type is int else float(value)
