"""Options: dataclass fields with their help and the values that fit, checked in one place.

A group of options is a frozen dataclass of such fields, and the first sentence of its docstring is
its title on the command line. A config inherits the groups that it uses, so an option is declared
once and is the setting of an algorithm, the option of an experiment, the entry in config.json and
the line of help.

The same check serves the command line, presets and options read back from a config.json: a value
must have the field's type, be one of its choices or lie within its range (so a number is always
finite), and several values must all differ.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from ewc_paper.errors import RunError
from ewc_paper.terminal import did_you_mean, shown

KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "on or off"}
MANY = 10**9  # the limit of counts that only time and disk space limit
LARGE = 1e12  # the limit of other numbers that have none of their own


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    common: bool = False,
) -> Any:
    """A dataclass field that is an option; a tuple takes several values, None leaves it out.

    Args:
        default: the default value, which also tells the type; for None the annotation does.
        help: one line for the command line.
        low: the least number that fits; numbers need it.
        high: the largest number that fits; without it, `MANY` for counts and `LARGE` for others.
        choices: the strings that fit.
        common: whether `--help` shows it; `--help-all` shows all.
    """
    if choices is not None:
        choices = tuple(choices)
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "common": common}
    return dataclasses.field(default=default, metadata=metadata)


def groups(config: type) -> dict[type, list[Field[Any]]]:
    """The options of a config by the class that first declares them, in the order of its bases."""
    by_name = {field.name: field for field in fields(config)}
    declared_by = {
        name: group for group in config.__mro__ for name in inspect.get_annotations(group)
    }
    options: dict[type, list[Field[Any]]] = {}
    for group in config.__mro__:
        names = [name for name in inspect.get_annotations(group) if name in by_name]
        own = [by_name[name] for name in names if declared_by[name] is group]
        if own:
            options[group] = own
    return options


def title(group: type) -> str:
    """The first sentence of the group's docstring, as a heading."""
    text = " ".join((group.__doc__ or "").split())
    return text.partition(". ")[0].removesuffix(".").replace("`", "")


def values_of(group: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given values that are fields of the group."""
    return {field.name: given[field.name] for field in fields(group) if field.name in given}


def flag(name: str) -> str:
    """The option of a field on the command line."""
    return "--" + name.replace("_", "-")


def value_type(field: Field[Any]) -> type:
    """The type of an option's value, or of each of its values."""
    if field.default is None:
        return next(kind for kind in (int, float, str) if kind.__name__ in str(field.type))
    return type(field.default[0] if isinstance(field.default, tuple) else field.default)


def limits(field: Field[Any]) -> tuple[float, float]:
    """The least and the largest number that fit an option that is a number."""
    low, high = field.metadata["low"], field.metadata["high"]
    if high is None:
        high = MANY if value_type(field) is int else LARGE
    return low, high


def format_value(value: Any) -> str:
    """A value as people write it, and as it stands in the names of parts."""
    if isinstance(value, list | tuple):
        return " ".join(map(format_value, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_options(config: type, values: Mapping[str, Any]) -> None:
    """Refuse values for the options of a config if one of them does not fit."""
    for field in fields(config):
        if field.name in values:
            _check(field, values[field.name])


def _check(field: Field[Any], value: Any) -> None:
    if value is None and field.default is None:
        return
    several = isinstance(field.default, tuple)
    if isinstance(value, tuple) != several:
        count = "several values" if several else "one value"
        raise RunError(f"{flag(field.name)} takes {count}, got {shown(value)}")
    for each in value if several else (value,):
        _check_each(field, each)
    if several:
        _check_different(field, value)


def _check_each(field: Field[Any], value: Any) -> None:
    kind, choices = value_type(field), field.metadata.get("choices")
    if type(value) not in ((int, float) if kind is float else (kind,)):
        raise RunError(f"{flag(field.name)} must be {KINDS[kind]}, got {shown(value)}")
    if choices is not None and value not in choices:
        raise RunError(
            f"{flag(field.name)} must be one of {', '.join(choices)}, got {shown(value)}"
            f"{did_you_mean(value, choices)}"
        )
    if kind is str and not value.strip():
        raise RunError(f"{flag(field.name)} must not be empty")
    if kind in (int, float):
        _check_range(field, value)


def _check_range(field: Field[Any], value: float) -> None:
    low, high = limits(field)
    if not value >= low:
        raise RunError(f"{flag(field.name)} must be at least {low:g}, got {shown(value)}")
    if not value <= high:
        raise RunError(f"{flag(field.name)} must be at most {high:g}, got {shown(value)}")


def _check_different(field: Field[Any], values: Sequence[Any]) -> None:
    """Values must differ as they are written, since parts are named after them."""
    if not values:
        raise RunError(f"{flag(field.name)} needs at least one value")
    seen: dict[str, Any] = {}
    for value in values:
        written = format_value(value)
        if written in seen:
            digits = " in their first six digits" if value_type(field) is float else ""
            raise RunError(
                f"{flag(field.name)} must all differ{digits}, got {seen[written]} and {value}"
            )
        seen[written] = value
