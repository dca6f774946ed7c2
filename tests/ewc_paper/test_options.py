"""Every option of every experiment knows which values fit, and refuses the others in one line."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from ewc_paper.cli import main
from ewc_paper.cli.parser import Running
from ewc_paper.errors import RunError
from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.options import (
    check_options,
    flag,
    format_value,
    groups,
    limits,
    option,
    title,
    value_type,
    values_of,
)
from ewc_paper.runs.directory import RunDirectory

NEVER = {  # texts that no option of the type takes
    int: ("inf", "nan", "-1", "1.5", "", "many", "1e11", str(10**30), "9" * 5000),
    float: ("inf", "-inf", "nan", "-1", "", "many", "1e300", "1e400"),
    str: ("", "nosuch", "../nowhere", "minatar/chess", "p\u00f6ng"),
}
ZEROS = {int: ("0", "-0"), float: ("0", "1e-300"), str: ()}  # some take these, some do not


class Started(Exception):
    """A run would begin now."""


def options() -> list[Any]:
    return [
        pytest.param(name, one, id=f"{name}-{one.name}")
        for name, experiment in EXPERIMENTS.items()
        for one in (*fields(experiment), *fields(Running))
    ]


def arguments(one: Field[Any]) -> Iterator[tuple[list[str], bool]]:
    """Values for an option on the command line, and whether they may start a run."""
    if isinstance(one.default, bool):
        yield [f"{flag(one.name)}=maybe"], False
        return
    for text in (*NEVER[value_type(one)], *ZEROS[value_type(one)]):
        yield [f"{flag(one.name)}={text}"], text in ZEROS[value_type(one)]
    yield [flag(one.name)], False
    if isinstance(one.default, tuple):
        text = format_value(one.default[0])
        yield [flag(one.name), text, text], False
    else:
        yield [flag(one.name), "1", "1", "1"], False


@pytest.mark.parametrize(("experiment", "one"), options())
def test_bad_values_are_one_line_and_leave_nothing_behind(
    experiment: str,
    one: Field[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise Started

    monkeypatch.setattr(RunDirectory, "start", start)
    monkeypatch.chdir(tmp_path)
    for given, may_start in arguments(one):
        code: object = None
        with contextlib.suppress(Started):
            try:
                code = main(["run", experiment, *given])
            except SystemExit as ended:
                code = ended.code
        said = capsys.readouterr()
        assert said.out == ""
        assert list(tmp_path.iterdir()) == []
        if code is None:
            assert may_start, f"{given} was accepted"
        else:
            assert code == 2, given
            assert said.err.startswith("ewc")
            assert said.err.count("\n") == 1, said.err
            assert said.err.endswith("\n")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_number_has_a_finite_range(experiment: str) -> None:
    for one in (*fields(EXPERIMENTS[experiment]), *fields(Running)):
        if value_type(one) in (int, float):
            low, high = limits(one)
            assert -math.inf < low < high < math.inf, one.name


@dataclass
class Some:
    """One option of each sort."""

    count: int = option(1, "a count", low=1, high=9)
    size: float = option(1.0, "a size", low=0, high=1)
    limit: float | None = option(None, "a limit", low=0, high=1)
    names: tuple[str, ...] = option(("a",), "names", choices=("a", "b"))
    sizes: tuple[float, ...] = option((1.0,), "sizes", low=0, high=100)
    switch: bool = option(False, "on or off")
    steps: int = option(1, "a count that time limits", low=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"count": 0}, "--count must be at least 1, got 0"),
        ({"count": 10}, "--count must be at most 9, got 10"),
        ({"count": True}, "--count must be a whole number, got true"),
        ({"count": 1.0}, "--count must be a whole number, got 1.0"),
        ({"count": None}, "--count must be a whole number, got null"),
        ({"size": math.nan}, "--size must be at least 0, got nan"),
        ({"size": math.inf}, "--size must be at most 1, got inf"),
        ({"size": "1"}, "--size must be a number, got 1"),
        ({"size": (1.0,)}, r"--size takes one value, got \[1.0\]"),
        ({"limit": 2.0}, "--limit must be at most 1, got 2.0"),
        ({"names": ()}, "--names needs at least one value"),
        ({"names": "a"}, "--names takes several values, got a"),
        ({"names": ("a", "c")}, "--names must be one of a, b, got c"),
        ({"names": ("a", "b", "a")}, "--names must all differ, got a and a"),
        ({"sizes": (1.0, math.inf)}, "--sizes must be at most 100, got inf"),
        (
            {"sizes": (10.0, 10.0000001)},
            "--sizes must all differ in their first six digits, got 10.0 and 10.0000001",
        ),
        ({"switch": "on"}, "--switch must be on or off, got on"),
        ({"steps": 10**10}, r"--steps must be at most 1e\+09, got 10000000000"),
    ],
)
def test_a_value_that_does_not_fit_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=f"^{said}$"):
        check_options(Some, changes)


@pytest.mark.parametrize(
    "changes", [{}, {"size": 1}, {"limit": 0.5}, {"names": ("b", "a")}, {"span": (0.5, 0.5)}]
)
def test_values_that_fit_are_taken(changes: dict[str, Any]) -> None:
    check_options(Some, changes)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The `engine`. It has
    cylinders.
    """

    power: int = option(1, "power", low=1)
    fuel: str = option("gas", "fuel", choices=("gas", "oil"))


@dataclass(frozen=True, kw_only=True)
class Wheels:
    """The wheels."""

    wheels: int = option(4, "number of wheels", low=1)


@dataclass(frozen=True, kw_only=True)
class Truck(Engine, Wheels):
    """Engine and wheels."""

    wheels: int = option(6, "number of wheels", low=6)
    load: float = option(1.0, "load", low=0)


def test_an_option_belongs_to_the_group_that_first_declares_it() -> None:
    found = {group: [one.name for one in options] for group, options in groups(Truck).items()}
    assert found == {Truck: ["load"], Engine: ["power", "fuel"], Wheels: ["wheels"]}
    assert list(found) == [Truck, Engine, Wheels]
    assert groups(Truck)[Wheels][0].default == 6


def test_the_title_is_the_first_sentence() -> None:
    assert [title(group) for group in (Engine, Wheels)] == ["The engine", "The wheels"]


def test_the_values_of_a_group_are_those_that_are_given() -> None:
    given = {"power": 3, "load": 2.0, "color": "red"}
    assert values_of(Truck, given) == {"power": 3, "load": 2.0}
    assert values_of(Wheels, given) == {}
