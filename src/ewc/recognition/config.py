"""The settings of a recogniser, checked."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

# Name, smallest and largest value. The product of two counts must stay in the range of float32.
_INTEGERS: tuple[tuple[str, float, float], ...] = (
    ("levels", 2, 256),
    ("window", 1, math.inf),
    ("wins", 1, math.inf),
    ("side", 1, math.inf),
)
_NUMBERS = (("prior", 1e-12, 1e12), ("independent", 1e-12, math.inf))


@dataclass(frozen=True)
class Settings:
    """What a recogniser is made with; refuses what does not fit."""

    levels: int
    prior: float
    window: int
    wins: int
    independent: float
    side: int

    def __post_init__(self) -> None:
        for name, low, high in _INTEGERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"expected {name} as an integer, got {value!r}")
            _check_range(name, value, low, high)
            object.__setattr__(self, name, int(value))  # NumPy's become plain
        for name, low, high in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise TypeError(f"expected {name} as a number, got {value!r}")
            _check_range(name, value, low, high)
            object.__setattr__(self, name, float(value))


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if not low <= value <= high:
        at_most = "" if high == math.inf else f" and at most {high:g}"
        raise ValueError(f"expected {name} of at least {low:g}{at_most}, got {value}")
