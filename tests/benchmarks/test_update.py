"""The kernels of an update are all there, with the operations that they take."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import update
from ewc_paper.games.network import NETWORKS, Architecture, QNetwork

SMALL = Architecture(((2, 8, 4), (3, 4, 2)), 5)


def test_the_kernels_take_as_many_operations_as_the_network() -> None:
    network = QNetwork(SMALL, (update.CHANNELS, update.SIDE, update.SIDE), update.ACTIONS, seed=0)
    network.add_context()
    states = torch.rand(update.BATCH, update.CHANNELS, update.SIDE, update.SIDE)
    with FlopCounterMode(display=False) as counter:
        network(states).sum().backward()
    kernels = update.update_kernels(SMALL, forwards=1)
    assert sum(kernel.operations for kernel in kernels) == counter.get_total_flops()


def test_each_kernel_takes_the_operations_that_are_counted_for_it() -> None:
    for kernel in update.update_kernels(SMALL, forwards=2):
        with FlopCounterMode(display=False) as counter:
            kernel.call()
        assert counter.get_total_flops() == kernel.operations, kernel.name
        assert kernel.times == (2 if "forward" in kernel.name else 1)


def test_the_rest_of_an_update_is_what_its_kernels_do_not_take() -> None:
    kernels = [update.Kernel("a", 2, 1024**3, lambda: None)]
    rows = update.rows(kernels, {"a": 1.0, update.LIMIT: 1.0, update.WHOLE: 5.0})
    assert [row["milliseconds"] for row in rows] == [2000.0, 2000.0, 3000.0, 5000.0]
    assert [row["at the limit"] for row in rows] == [1000.0, 1000.0, 0.0, 1000.0]
    assert [row["multiple"] for row in rows] == [2.0, 2.0, None, 5.0]


@pytest.mark.parametrize("double", [False, True])
def test_an_update_learns(double: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "COMMON", {**update.COMMON, "size": 42})
    monkeypatch.setitem(NETWORKS, "nature", NETWORKS["small"])
    assert update.update(double=double)() >= 0
