"""What the tests of the Fisher share."""

import pytest

from ewc.fisher.per_sample import checks
from ewc.fisher.per_sample.plan import Plan


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are made while the test runs."""
    made: list[Plan] = []
    original = checks.make_plan

    def spy(*args: object) -> Plan:
        made.append(original(*args))
        return made[-1]

    monkeypatch.setattr(checks, "make_plan", spy)
    return made
