"""Checks of JSON values: each raises SchemaError with the path to the first value that is wrong.

record(tasks=integer(1, 300), games=list_of(short_text))({"tasks": 0})
SchemaError: tasks: expected a whole number from 1 to 300, got 0
"""

from collections.abc import Callable, Collection
from typing import Any

from ewc_paper.terminal import shown

Check = Callable[[Any], None]
LARGEST = 10**15  # a larger number is a mistake


class SchemaError(Exception):
    """A value does not have the expected form; the message starts with the path to the value."""


def _expect(valid: bool, expected: str, value: Any) -> None:
    if not valid:
        raise SchemaError(f"expected {expected}, got {shown(value)}")


def _check_inside(name: object, check: Check, value: Any) -> None:
    """Check a value inside another; `name` is added to the path in an error."""
    try:
        check(value)
    except SchemaError as error:
        inner = str(error)
        between = ": " if inner.startswith("expected ") else "."
        raise SchemaError(f"{name}{between}{inner}") from None


def anything(value: Any) -> None:
    """Accept any value: one that is not read."""


def integer(low: int = 0, high: int = LARGEST) -> Check:
    """Accept an integer from `low` to `high`."""

    def check(value: Any) -> None:
        valid = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        _expect(valid, f"a whole number from {low} to {high}", value)

    return check


def number(low: float = -LARGEST, high: float = LARGEST) -> Check:
    """Accept a number from `low` to `high`, so neither infinity nor NaN."""

    def check(value: Any) -> None:
        valid = isinstance(value, int | float) and not isinstance(value, bool)
        _expect(valid and low <= value <= high, f"a number from {low:g} to {high:g}", value)

    return check


def flag(value: Any) -> None:
    """Accept true or false."""
    _expect(isinstance(value, bool), "true or false", value)


def short_text(value: Any) -> None:
    """Accept a short text without control characters, which a terminal would act on."""
    valid = isinstance(value, str) and value.isprintable() and 0 < len(value) <= 200
    _expect(valid, "a short text", value)


def one_of(values: Collection[str]) -> Check:
    """Accept one of these strings."""

    def check(value: Any) -> None:
        _expect(
            isinstance(value, str) and value in values, f"one of {', '.join(sorted(values))}", value
        )

    return check


def optional(inner: Check) -> Check:
    """Accept null, or what `inner` accepts."""
    return lambda value: None if value is None else inner(value)


def list_of(item: Check, shortest: int = 0, longest: int = LARGEST) -> Check:
    """Accept a list of what `item` accepts.

    Args:
        item: check of each item.
        shortest: smallest number of items.
        longest: largest number of items.
    """

    def check(value: Any) -> None:
        _expect(isinstance(value, list), "a list", value)
        size = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        _expect(shortest <= len(value) <= longest, f"{size} values", value)
        for index, entry in enumerate(value):
            _check_inside(index, item, entry)

    return check


def mapping(names: Check, item: Check) -> Check:
    """Accept an object whose names pass the check `names` and whose values pass `item`."""

    def check(value: Any) -> None:
        _expect(isinstance(value, dict), "an object", value)
        for name, entry in value.items():
            names(name)
            _check_inside(name, item, entry)

    return check


def record(**fields: Check) -> Check:
    """Accept an object with at least these fields; a field that may be null may also be missing."""

    def check(value: Any) -> None:
        _expect(isinstance(value, dict), "an object", value)
        for name, inner in fields.items():
            _check_inside(name, inner, value.get(name))

    return check


def variants(field: str, **records: Check) -> Check:
    """Accept an object of one of several kinds.

    Args:
        field: name of the field that holds the kind.
        records: check of each kind; an object of another kind is accepted, as it is not read.
    """

    def check(value: Any) -> None:
        _check_inside(field, short_text, value.get(field))
        records.get(value[field], anything)(value)

    return check
