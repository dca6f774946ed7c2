"""A small language for what a JSON value must be: each check raises with a path to what is wrong.

record(tasks=whole(1, 300), games=list_of(text))({"tasks": 0})
Wrong: tasks: expected a whole number from 1 to 300, got 0
"""

from collections.abc import Callable, Collection
from typing import Any

Check = Callable[[Any], None]
MOST = 10**15  # above it, a number cannot be meant


class Wrong(Exception):
    """A value is not what it must be; the message starts with the path to it."""


def _expect(right: bool, expected: str, value: Any) -> None:
    if not right:
        said = repr(value)
        raise Wrong(f"expected {expected}, got {said[:60]}{'...' if len(said) > 60 else ''}")


def _within(name: object, check: Check, value: Any) -> None:
    try:
        check(value)
    except Wrong as wrong:
        inner = str(wrong)
        between = ": " if inner.startswith("expected ") else "."
        raise Wrong(f"{name}{between}{inner}") from None


def anything(value: Any) -> None:
    """Any value; for what is not read."""


def whole(low: int = 0, high: int = MOST) -> Check:
    """An integer in a range."""

    def check(value: Any) -> None:
        right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        _expect(right, f"a whole number from {low} to {high}", value)

    return check


def number(low: float = -MOST, high: float = MOST) -> Check:
    """A number in a range; so neither infinite nor NaN."""

    def check(value: Any) -> None:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        _expect(right and low <= value <= high, f"a number from {low:g} to {high:g}", value)

    return check


def flag(value: Any) -> None:
    """True or false."""
    _expect(isinstance(value, bool), "true or false", value)


def text(value: Any) -> None:
    """A short name; characters that a terminal would obey are none of it."""
    right = isinstance(value, str) and value.isprintable() and 0 < len(value) <= 200
    _expect(right, "a short name", value)


def one_of(values: Collection[str]) -> Check:
    """One of these texts."""

    def check(value: Any) -> None:
        _expect(
            isinstance(value, str) and value in values, f"one of {', '.join(sorted(values))}", value
        )

    return check


def optional(inner: Check) -> Check:
    """That, or null."""
    return lambda value: None if value is None else inner(value)


def list_of(item: Check, least: int = 0, most: int = MOST) -> Check:
    """A list of such items, with as many of them as allowed."""

    def check(value: Any) -> None:
        _expect(isinstance(value, list), "a list", value)
        size = f"{least}" if least == most else f"{least} to {most}"
        _expect(least <= len(value) <= most, f"{size} values", value)
        for number, one in enumerate(value):
            _within(number, item, one)

    return check


def by_name(names: Check, item: Check) -> Check:
    """An object from such names to such items."""

    def check(value: Any) -> None:
        _expect(isinstance(value, dict), "an object", value)
        for name, one in value.items():
            names(name)
            _within(name, item, one)

    return check


def record(**fields: Check) -> Check:
    """An object with at least these fields; an optional one may be missing."""

    def check(value: Any) -> None:
        _expect(isinstance(value, dict), "an object", value)
        for name, inner in fields.items():
            _within(name, inner, value.get(name))

    return check


def kinds(field: str, **records: Check) -> Check:
    """An object whose field says which of these it is; others are not read."""

    def check(value: Any) -> None:
        _within(field, text, value.get(field))
        records.get(value[field], anything)(value)

    return check
