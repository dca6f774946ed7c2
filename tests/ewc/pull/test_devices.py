"""On a GPU nothing mixes devices, and no step waits for a value that it does not need.

There is no GPU where these tests run: see `support.fake_device`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from support import fake_device
from support.fake_device import MAKE, NAME, notices, reads_per_step, set_up, without_reads
from torch import nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from ewc import EWC

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Call a function in another process, which has the fake device."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this version of torch cannot have a device in Python")
    with ProcessPoolExecutor(1, get_context("spawn"), set_up) as pool:
        yield lambda function, *args, **options: pool.submit(function, *args, **options).result()


def test_mixed_devices_raise_and_reads_are_counted(run: Run) -> None:
    error, value, copy = run(notices)
    assert NAME in error
    assert "cpu" in error
    assert (value, copy) == (1, 1)


@pytest.mark.parametrize("how", ["proximal", "gradient"])
@pytest.mark.parametrize("name", [name for name in MAKE if name != "rate on device"])
def test_steps_with_a_fixed_strength_read_nothing(name: str, how: str, run: Run) -> None:
    """But for the first one, which checks the new well. Adafactor of torch reads by itself."""
    own = run(reads_per_step, name, memories=0)
    pulled = run(reads_per_step, name, how, strength=1.0)
    assert pulled[1:] == own[1:]
    assert (own[1] > 0) == (name == "adafactor")
    assert pulled[0] - own[0] <= 2 * 2  # two sums per parameter


@pytest.mark.parametrize("how", ["proximal", "gradient"])
@pytest.mark.parametrize("name", ["momentum", "fused adam", "capturable adamw"])
def test_several_memories_read_nothing_either(name: str, how: str, run: Run) -> None:
    assert run(reads_per_step, name, how, memories=3, strength=1.0)[1:] == [0, 0, 0]


@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_a_gradient_scaler_inside_the_optimizer_is_not_read(how: str, run: Run) -> None:
    for name in ("fused adam", "fused adamw"):
        assert run(reads_per_step, name, how, strength=1.0, scaled=True)[1:] == [0, 0, 0]


def test_a_learning_rate_on_the_device_is_read_once_per_step(run: Run) -> None:
    assert run(reads_per_step, "rate on device", strength=1.0)[1:] == [1, 1, 1]
    assert run(reads_per_step, "rate on device", "gradient", strength=1.0)[1:] == [0, 0, 0]


@pytest.mark.parametrize("memories", [1, 2])
@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_a_budget_reads_one_value_per_measurement(how: str, memories: int, run: Run) -> None:
    """The estimate, every step or, at the budget, every 16th; no other value of any memory."""
    at_the_budget = fake_device.ANSWER / 2 / 2  # two tasks
    options = {"memories": memories, "steps": 100, "budget": at_the_budget}
    counts = run(reads_per_step, "foreach adam", how, **options)
    measured = [1, 3, 7, 15, 31, 47, 63, 79, 95]
    assert [step for step, count in enumerate(counts) if count and step] == measured
    checked = 63 if how == "proximal" else 0  # whether the pull lets anything move, when settled
    assert {count for step, count in enumerate(counts) if step not in (0, checked)} == {0, memories}
    beyond = run(reads_per_step, "foreach adam", how, memories=memories, steps=60, budget=1e-3)
    assert set(beyond[1:]) == {memories}


def test_the_default_budget_reads_the_scale_of_the_memory_once(run: Run) -> None:
    counts = run(reads_per_step, "foreach adam", steps=20)
    assert counts[0] == 1 + 2  # the estimate, and E(0) of each parameter
    assert set(counts[1:]) <= {0, 1}


@pytest.mark.parametrize("how", ["proximal", "gradient"])
@pytest.mark.parametrize("name", ["momentum", "foreach adam", "decoupled nadam", "adafactor"])
def test_a_model_on_several_devices_is_pulled_where_it_is(name: str, how: str, run: Run) -> None:
    own = run(reads_per_step, name, memories=0, bias_device="cpu")
    for memories in (1, 2):
        counts = run(reads_per_step, name, how, memories=memories, strength=1.0, bias_device="cpu")
        assert counts[1:] == own[1:]


@pytest.mark.parametrize("keep_tasks", [False, True, "cpu"])
def test_states_and_penalties_stay_on_the_device(keep_tasks: Any, run: Run) -> None:
    model = nn.Linear(4, 3)
    memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
    for task in "AB":
        memory.anchor(1.0, task=task)
    counts = run(without_reads, keep_tasks, memory.state_dict()["values"].tolist())
    kept_elsewhere = 2 * 2 * 2 * (keep_tasks == "cpu")  # precision and anchor, of each parameter
    assert counts == {
        # Per parameter: four checks, whether it is zero, a copy to compare later, two sums;
        # and for the second, whether the weights moved, and two energies to add it.
        "two anchors": 2 * 2 * 7 + 2 + 2 * 2 + kept_elsewhere,
        "penalty": 0,
        "estimated_rise": 1,
        "state_dict": 0,
        "load_state_dict": kept_elsewhere,
    }


class ValueReads(TorchDispatchMode):
    """Counts the values that are read, on any device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in fake_device.READS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["exact", "sampled", "empirical"])
def test_a_fisher_reads_as_many_values_of_many_batches_as_of_few(kind: Any) -> None:
    """Its checks look at the first batch; it cannot run without values, so it runs on the CPU."""
    counts = []
    for batches in (2, 8):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        data = [(torch.randn(16, 4), torch.randint(3, (16,))) for _ in range(batches)]
        with ValueReads() as reads:
            EWC(model).consolidate(data, kind=kind)
        counts.append(reads.count)
    assert counts[0] == counts[1] > 0
