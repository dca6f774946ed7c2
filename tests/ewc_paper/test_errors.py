"""Errors that a person can act on are no mistakes of the program."""

import pytest

from ewc_paper.errors import Interrupted, RunError


@pytest.mark.parametrize("error", [RunError, Interrupted])
def test_they_are_not_caught_as_errors_of_another_kind(error: type[Exception]) -> None:
    assert not issubclass(error, ValueError | OSError | RuntimeError)
    assert str(error("do this")) == "do this"


def test_an_interruption_is_not_a_failed_run() -> None:
    assert not issubclass(Interrupted, RunError)
