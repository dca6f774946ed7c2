"""What the tests of the Fisher share."""

import pytest

from ewc.fisher import diagonal as fisher_module
from ewc.fisher.autograd.plan import Plan


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are made while the test runs."""
    made: list[Plan] = []
    original = fisher_module.make_plan

    def spy(*args: object) -> Plan:
        made.append(original(*args))
        return made[-1]

    monkeypatch.setattr(fisher_module, "make_plan", spy)
    return made
