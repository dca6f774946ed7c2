"""What a sweep goes over: a field of an experiment, and the values to list or to draw.

lr=0.01,0.1          a list
lr=0.01..0.1         a range, drawn evenly; whole numbers if the option is one, both ends included
lr=log:1e-5..1e-3    a range, drawn evenly on a log scale
methods=ewc+sgd,ewc  a list for an option with several values: + joins those of one trial
"""

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

import numpy as np

from ewc_paper.errors import RunError
from ewc_paper.options import check_options, kind_of

NOT_SWEPT = ("seed", "seeds")  # every trial is run with the same seeds
FORMS = "a,b,c for a list, a..b for a range or log:a..b for one on a log scale"


@dataclass(frozen=True)
class Listed:
    """Values that are listed."""

    field: str
    text: str  # as on the command line
    values: tuple[Any, ...]

    def draw(self, random: np.random.Generator) -> Any:
        return self.values[random.integers(len(self.values))]


@dataclass(frozen=True)
class Range:
    """Numbers between two ends."""

    field: str
    text: str
    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, random: np.random.Generator) -> float | int:
        if self.whole and not self.log:
            return int(random.integers(int(self.low), int(self.high) + 1))
        ends = np.log([self.low, self.high]) if self.log else np.array([self.low, self.high])
        number = float(random.uniform(*ends))
        number = min(self.high, max(self.low, math.exp(number) if self.log else number))
        return round(number) if self.whole else number


Spec = Listed | Range


def parse_specs(texts: Sequence[str], experiment: type) -> list[Spec]:
    """Parse all that a sweep goes over; refuses what is no option of the experiment."""
    specs = [parse_spec(text, experiment) for text in texts]
    names = [spec.field for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise RunError(f"--over names {name} twice")
    return specs


def parse_spec(text: str, experiment: type) -> Spec:
    """Parse one `field=spec`, and check that its values fit the option."""
    name, equals, spec = text.partition("=")
    name = name.strip().replace("-", "_")
    options = {one.name: one for one in fields(experiment) if one.name not in NOT_SWEPT}
    if not equals or not spec.strip():
        raise RunError(f"--over must be FIELD=SPEC, got {text!r}: write {FORMS}")
    if name in NOT_SWEPT:
        raise RunError(f"--over cannot go over {name}: --seeds N repeats every trial with N seeds")
    if name not in options:
        raise RunError(f"--over: there is no option {name}; there are {', '.join(options)}")
    parsed = _parse(options[name], spec.strip())
    ends = (parsed.low, parsed.high) if isinstance(parsed, Range) else parsed.values
    for value in ends:
        _check(experiment, parsed, value)
    return parsed


def _check(experiment: type, spec: Spec, value: Any) -> None:
    whole = isinstance(spec, Range) and spec.whole
    try:
        check_options(experiment, {spec.field: int(value) if whole else value})
    except RunError as error:
        raise RunError(f"--over {spec.field}={spec.text}: {error}") from None


def _parse(option: Field[Any], text: str) -> Spec:
    if ".." in text:
        return _parse_range(option, text)
    several = isinstance(option.default, tuple)
    values = tuple(
        tuple(_value(option, each) for each in item.split("+")) if several else _value(option, item)
        for item in text.split(",")
    )
    if len(set(values)) < len(values):
        raise RunError(f"--over {option.name}={text}: values must differ")
    return Listed(option.name, text, values)


def _parse_range(option: Field[Any], text: str) -> Range:
    kind = kind_of(option)
    log = text.startswith("log:")
    low_text, _, high_text = text.removeprefix("log:").partition("..")
    is_number = kind in (int, float) and not isinstance(option.default, tuple)
    if not is_number:
        raise RunError(f"--over {option.name}={text}: only numbers have ranges, write a list")
    low, high = _value(option, low_text), _value(option, high_text)
    if not low < high:
        raise RunError(f"--over {option.name}={text}: a range must rise, got {low} to {high}")
    if log and low <= 0:
        raise RunError(f"--over {option.name}={text}: a log scale begins above 0, got {low}")
    return Range(option.name, text, low, high, log, whole=kind is int)


def _value(option: Field[Any], text: str) -> Any:
    text = text.strip()
    if isinstance(option.default, bool):
        if text not in ("on", "off"):
            raise RunError(f"--over {option.name}: a switch is on or off, got {text!r}")
        return text == "on"
    kind = kind_of(option)
    try:
        return kind(text)
    except ValueError:
        raise RunError(
            f"--over {option.name}: expected {kind.__name__}, got {text!r}; write {FORMS}"
        ) from None
