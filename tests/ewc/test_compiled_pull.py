"""Compiled kernels pull as the operations of torch do, and are refused where they cannot work."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, Optimizer, RMSprop

import ewc
from ewc import compiled_pull

pytestmark = pytest.mark.slow  # kernels are compiled

Make = Callable[[nn.Module], Optimizer]
SIZE = 70  # a weight of 70 x 70 numbers is pulled by kernels, and its bias is not
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.5),
    "adam": lambda m: Adam(m.parameters(), lr=0.01),
    "adamw": lambda m: AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
    "adamw, fused": lambda m: AdamW(m.parameters(), lr=0.01, weight_decay=0.1, fused=True),
    "adamw, tiny eps": lambda m: AdamW(m.parameters(), lr=0.01, weight_decay=0.1, eps=1e-30),
    "rmsprop": lambda m: RMSprop(m.parameters(), lr=0.01, centered=True),
    "adagrad": lambda m: Adagrad(m.parameters(), lr=0.1),
    "adafactor": lambda m: Adafactor(m.parameters(), lr=0.1),
}


def trained(
    make: Make, compiled: bool, strength: float = 3.0, dtype: torch.dtype = torch.float64
) -> nn.Linear:
    """Train with a schedule, away from the anchor; some weights are not held, some not used."""
    torch.manual_seed(0)
    model = nn.Linear(SIZE, SIZE).to(dtype)
    memory = ewc.EWC(model, strength=strength)
    precision = {
        name: torch.rand_like(p, dtype=torch.float32) for name, p in model.named_parameters()
    }
    precision["weight"][:10] = 0.0
    memory.anchor(precision)
    optimizer = make(model)
    memory.attach(optimizer, compiled=compiled)
    x, y = torch.randn(2, 20, SIZE, dtype=torch.float64).to(dtype)
    x[:, :5] = 0.0
    for step in range(6):
        optimizer.param_groups[0]["lr"] *= 0.9 if step > 2 else 1.0
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_weights_are_the_same_to_rounding(make: Make, called: list[str]) -> None:
    expected = trained(make, compiled=False)
    assert called == []
    found = trained(make, compiled=True)
    assert len(called) >= 6
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.bias, expected.bias, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strength", [1e-6, 1e4, 1e25])
def test_any_strength_is_finite_and_the_same(dtype: torch.dtype, strength: float) -> None:
    make = OPTIMIZERS["adamw"]
    expected, found = (trained(make, compiled, strength, dtype) for compiled in (False, True))
    assert found.weight.dtype == dtype
    torch.testing.assert_close(found.weight, expected.weight)


def test_a_schedule_and_other_sizes_do_not_compile_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trained(OPTIMIZERS["adamw"], compiled=True, dtype=torch.float32)
    with torch.compiler.set_stance("fail_on_recompile"):
        trained(OPTIMIZERS["adamw"], compiled=True, strength=7.0, dtype=torch.float32)
        monkeypatch.setitem(globals(), "SIZE", 90)
        trained(OPTIMIZERS["adamw"], compiled=True, dtype=torch.float32)


def test_what_kernels_are_not_for_is_pulled_without(called: list[str]) -> None:
    """A parameter in another memory layout, one without a gradient, and a small one."""
    for compiled in (True, False):
        torch.manual_seed(0)
        model = nn.Conv2d(40, 40, 3).to(memory_format=torch.channels_last)
        model.unused = nn.Parameter(torch.randn(5000))
        memory = ewc.EWC(model, strength=1.0)
        memory.anchor(1.0)
        optimizer = Adam(model.parameters(), lr=0.01)
        memory.attach(optimizer, compiled=compiled)
        with torch.no_grad():
            model.unused += 1.0
        for _ in range(3):
            model(torch.randn(2, 40, 5, 5)).square().mean().backward()
            optimizer.step()
        if compiled:
            expected = copy.deepcopy(model)
    assert called == ["pull_"] * called.count("pull_")
    for found, one in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, one)


def test_a_step_that_a_device_knows_to_be_skipped_is_not_pulled() -> None:
    for share, moves in ((torch.tensor(0.0), False), (torch.tensor(1.0), True)):
        numbers = compiled_pull.Numbers(share).tensors((0.5, 0.1), torch.zeros(1))
        theta, anchor, precision = torch.ones(5000), torch.zeros(5000), torch.ones(5000)
        compiled_pull.pull_(theta, anchor, precision, torch.ones(5000), *numbers)
        assert bool((theta < 1).all()) is moves
        assert bool((theta == 1).all()) is not moves


def test_a_gradient_pull_is_not_compiled() -> None:
    model = nn.Linear(3, 2)
    memory = ewc.EWC(model, strength=1.0)
    with pytest.raises(ValueError, match="compiled=True is for how='proximal'"):
        memory.attach(SGD(model.parameters()), how="gradient", compiled=True)


def test_without_a_compiler_attach_says_so_and_attaches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("no g++ here")

    compiled_pull._check_compiler.cache_clear()
    monkeypatch.setattr(compiled_pull, "_compiled", lambda kernel: fail)
    model = nn.Linear(3, 2)
    memory = ewc.EWC(model, strength=1.0)
    optimizer = SGD(model.parameters())
    with pytest.raises(RuntimeError, match=r"g\+\+ or clang.*OSError: no g\+\+ here; install"):
        memory.attach(optimizer, compiled=True)
    memory.attach(optimizer)


def test_copies_are_compiled_too(called: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(SIZE, SIZE)
    memory = ewc.EWC(model, strength=1.0)
    memory.anchor(1.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer, compiled=True)
    model, optimizer, memory = copy.deepcopy((model, optimizer, memory))
    called.clear()
    model(torch.randn(4, SIZE)).sum().backward()
    optimizer.step()
    assert called == ["pull_"]
