"""Options: dataclass fields with their help and the values that fit, checked in one place.

The same check serves the command line, presets and options read back from a config.json: a value
must have the field's type, be one of its choices or lie within its range (so a number is always
finite), and several values must all differ.
"""

from collections.abc import Sequence
from dataclasses import Field, field, fields
from typing import Any

from ewc_paper.errors import RunError

MANY = 10**9  # the limit of counts that only time and room limit


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    rising: bool = False,
    common: bool = False,
) -> Any:
    """A dataclass field that is an option; a tuple takes several values, None leaves it out.

    Args:
        default: the default value, which also tells the type; for None the annotation does.
        help: one line for the command line.
        low: the least number that fits; numbers need both limits.
        high: the largest number that fits.
        choices: the texts that fit.
        rising: two numbers, from and to, instead of values that all differ.
        common: whether `--help` shows it; `--help-all` shows all.
    """
    if choices is not None:
        choices = tuple(choices)
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "rising": rising}
    metadata["common"] = common
    return field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """The option of a field on the command line."""
    return "--" + name.replace("_", "-")


def kind_of(one: Field[Any]) -> type:
    """The type of an option's value, or of each of its values."""
    if one.default is None:
        return next(kind for kind in (int, float, str) if kind.__name__ in str(one.type))
    return type(one.default[0] if isinstance(one.default, tuple) else one.default)


def plain(value: Any) -> str:
    """A value as people write it, and as it stands in the names of parts."""
    if isinstance(value, list | tuple):
        return " ".join(map(plain, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_options(config: Any) -> None:
    """Refuse a dataclass of options if one of its values does not fit."""
    for one in fields(config):
        _check(one, getattr(config, one.name))


def _check(one: Field[Any], value: Any) -> None:
    if value is None and one.default is None:
        return
    several = isinstance(one.default, tuple)
    if isinstance(value, tuple) != several:
        raise RunError(f"{flag(one.name)} takes {'several' if several else 'one'}, got {value!r}")
    for each in value if several else (value,):
        _check_each(one, each)
    if one.metadata["rising"]:
        _check_rising(one, value)
    elif several:
        _check_different(one, value)


def _check_each(one: Field[Any], value: Any) -> None:
    low, high, choices = (one.metadata[key] for key in ("low", "high", "choices"))
    kind = kind_of(one)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise RunError(f"{flag(one.name)} must be of type {kind.__name__}, got {value!r}")
    if choices is not None and value not in choices:
        raise RunError(f"{flag(one.name)} must be one of {', '.join(choices)}, got {value}")
    if low is not None and not value >= low:
        raise RunError(f"{flag(one.name)} must be at least {low:g}, got {value}")
    if high is not None and not value <= high:
        raise RunError(f"{flag(one.name)} must be at most {high:g}, got {value}")


def _check_rising(one: Field[Any], values: Sequence[Any]) -> None:
    if len(values) != 2 or not values[0] <= values[1]:
        raise RunError(f"{flag(one.name)} must be two rising numbers, got {plain(values)}")


def _check_different(one: Field[Any], values: Sequence[Any]) -> None:
    """Values must differ as they are written, since parts are named after them."""
    if not values:
        raise RunError(f"{flag(one.name)} needs at least one value")
    seen: dict[str, Any] = {}
    for value in values:
        if plain(value) in seen:
            digits = " in their first six digits" if kind_of(one) is float else ""
            raise RunError(
                f"{flag(one.name)} must all differ{digits}, got {seen[plain(value)]} and {value}"
            )
        seen[plain(value)] = value
