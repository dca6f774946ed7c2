"""A check says where in a value something is wrong, what was expected and what came."""

import math
from typing import Any

import pytest

from ewc_paper.figures.schema import (
    Check,
    Wrong,
    by_name,
    flag,
    kinds,
    list_of,
    number,
    one_of,
    optional,
    record,
    text,
    whole,
)

ROW = kinds("kind", test=record(scores=by_name(one_of(["Pong"]), list_of(number(), 1))))


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (whole(1, 3), 3),
        (number(0, 1), 0.5),
        (number(), -2),
        (flag, False),
        (text, "minatar/breakout"),
        (optional(whole()), None),
        (list_of(whole(), 2, 2), [1, 2]),
        (record(a=whole()), {"a": 1, "b": "not read"}),
        (ROW, {"kind": "test", "scores": {"Pong": [1.0]}}),
        (ROW, {"kind": "of another kind"}),
    ],
)
def test_what_is_right_passes(check: Check, value: Any) -> None:
    check(value)


@pytest.mark.parametrize(
    ("check", "value", "said"),
    [
        (whole(1, 3), 4, "expected a whole number from 1 to 3, got 4"),
        (whole(), True, "expected a whole number .*, got True"),
        (whole(), 1.0, "expected a whole number .*, got 1.0"),
        (number(), math.nan, "expected a number .*, got nan"),
        (number(), math.inf, "expected a number .*, got inf"),
        (number(), 10**400, r"expected a number .*, got 10{59}\.\.\.$"),
        (text, "a\x1b[31m", r"expected a short name, got 'a\\x1b\[31m'"),
        (text, "x" * 201, "expected a short name"),
        (one_of("ab"), [], r"expected one of a, b, got \[\]"),
        (list_of(whole(), 1), [], r"expected 1 to \d+ values, got \[\]"),
        (record(a=record(b=whole())), {"a": {}}, "^a.b: expected a whole number .*, got None"),
        (record(a=whole()), [], "expected an object"),
        (ROW, {"kind": "test", "scores": {"Pong": ["1"]}}, "^scores.Pong.0: expected a number"),
        (ROW, {"kind": "test", "scores": {"Chess": []}}, "^scores: expected one of Pong"),
        (ROW, {}, "^kind: expected a short name, got None"),
    ],
)
def test_what_is_wrong_is_named(check: Check, value: Any, said: str) -> None:
    with pytest.raises(Wrong, match=said):
        check(value)
