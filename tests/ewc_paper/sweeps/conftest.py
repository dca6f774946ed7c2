"""A sweep of tiny networks on permuted MNIST, which an engine without processes runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs import OPTIONS, write_data

from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.sweeps.sweep import Plan


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def make_plan(data: Path) -> Callable[..., Plan]:
    def make(**changes: object) -> Plan:
        more = {"data": str(data), "validation_samples": 40, "methods": ("ewc", "sgd")}
        base = ManyTasks.preset("quick", **(OPTIONS | {"tasks": 4} | more))
        given = {"over": ("lr=log:1e-4..1",), "trials": 4, "seeds": 1, "grid": False}
        return Plan(base, **(given | changes))  # type: ignore[arg-type]

    return make
