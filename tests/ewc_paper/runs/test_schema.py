"""An error says where in a value something is wrong, what was expected and what was found."""

import math
from typing import Any

import pytest

from ewc_paper.runs.schema import (
    Check,
    SchemaError,
    flag,
    integer,
    list_of,
    mapping,
    number,
    one_of,
    optional,
    record,
    short_text,
    variants,
)

ROW = variants("kind", test=record(scores=mapping(one_of(["Pong"]), list_of(number(), 1))))


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (integer(1, 3), 3),
        (number(0, 1), 0.5),
        (number(), -2),
        (flag, False),
        (short_text, "minatar/breakout"),
        (optional(integer()), None),
        (list_of(integer(), 2, 2), [1, 2]),
        (record(a=integer()), {"a": 1, "b": "not read"}),
        (ROW, {"kind": "test", "scores": {"Pong": [1.0]}}),
        (ROW, {"kind": "of another kind"}),
    ],
)
def test_valid_values_pass(check: Check, value: Any) -> None:
    check(value)


@pytest.mark.parametrize(
    ("check", "value", "said"),
    [
        (integer(1, 3), 4, "expected a whole number from 1 to 3, got 4"),
        (integer(), True, "expected a whole number .*, got true"),
        (integer(), 1.0, "expected a whole number .*, got 1.0"),
        (number(), math.nan, "expected a number .*, got nan"),
        (number(), math.inf, "expected a number .*, got inf"),
        (number(), 10**400, r"expected a number .*, got 10{59}\.\.\.$"),
        (short_text, "a\x1b[31m", r"expected a short text, got a\?\[31m"),
        (short_text, "x" * 201, "expected a short text"),
        (one_of("ab"), [], r"expected one of a, b, got \[\]"),
        (list_of(integer(), 1), [], r"expected 1 to \d+ values, got \[\]"),
        (record(a=record(b=integer())), {"a": {}}, "^a.b: expected a whole number .*, got null"),
        (record(a=integer()), [], "expected an object"),
        (ROW, {"kind": "test", "scores": {"Pong": ["1"]}}, "^scores.Pong.0: expected a number"),
        (ROW, {"kind": "test", "scores": {"Chess": []}}, "^scores: expected one of Pong"),
        (ROW, {}, "^kind: expected a short text, got null"),
    ],
)
def test_the_error_names_what_is_wrong(check: Check, value: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        check(value)
