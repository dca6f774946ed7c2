"""Two tasks, learned by one process with all samples or by several with a part of them each."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ewc

Batch = tuple[Tensor, Tensor]
SAMPLES = 8
STEPS = 20


class Trained(NamedTuple):
    """An optimizer, how the memory pulls on it, and how strongly."""

    optimizer: Callable[[Any], torch.optim.Optimizer]
    how: Literal["proximal", "gradient"]
    strength: dict[str, float]


FIXED = {"strength": 30.0}
OPTIMIZERS = {
    "sgd": Trained(partial(torch.optim.SGD, lr=0.1, momentum=0.9), "proximal", FIXED),
    "gradient": Trained(partial(torch.optim.SGD, lr=0.1), "gradient", FIXED),
    "adamw": Trained(partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1), "proximal", FIXED),
    "budget": Trained(partial(torch.optim.Adam, lr=0.01), "proximal", {"budget": "auto"}),
}


def make_model() -> nn.Sequential:
    """Layers whose rows cannot be divided equally by 2 or 4; some ranks get none of the last."""
    torch.manual_seed(0)
    first, second = nn.Linear(5, 7), nn.Sequential(nn.Linear(7, 6), nn.Tanh())
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(6, 3)).double()


def make_task(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (SAMPLES,), generator=generator)


def uneven_part(task: Batch, rank: int, size: int) -> list[Batch]:
    """A rank's batches: each rank has more samples than the one before; the last of 4 has none."""
    if size == 1:
        return [task]
    cuts = {2: [0, 3, 8], 4: [0, 1, 3, 8, 8]}[size]
    inputs, labels = (tensor[cuts[rank] : cuts[rank + 1]] for tensor in task)
    return list(zip(inputs.split(3), labels.split(3), strict=True)) if len(inputs) else []


def even_part(task: Batch, rank: int, size: int) -> Batch:
    inputs, labels = task
    return inputs[rank::size], labels[rank::size]


def learn_two_tasks(model: nn.Module, name: str, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """Learn a task and consolidate it, then another while the memory pulls; return what came."""
    first, second = make_task(1), make_task(2)
    memory = ewc.EWC(model, **OPTIMIZERS[name].strength)
    fisher = memory.consolidate(uneven_part(first, rank, size), task="A", kind="exact")
    optimizer = OPTIMIZERS[name].optimizer(model.parameters())
    memory.attach(optimizer, how=OPTIMIZERS[name].how)
    inputs, labels = even_part(second, rank, size)
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    strength = memory.strength
    penalty = float(memory.penalty().detach())
    shaped: dict[str, Any] = {"kind": "empirical", "floor": 0.1, "normalize": 2.0}
    second_fisher = memory.consolidate(uneven_part(second, rank, size), task="B", **shaped)
    bottom = float(memory.penalty().detach())  # of both tasks, at the weights of the second
    return {
        "fisher": whole(fisher),
        "second fisher": whole(second_fisher),
        "penalty": penalty,
        "strength": strength,
        "bottom": bottom,
        "weights": whole(dict(bare(model).named_parameters())),
        # without remainders, which are kept only where rounding would show
        "state": whole({k: t for k, t in memory.state_dict().items() if "remainder" not in k}),
    }


def bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def whole(tensors: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors, with sharded ones gathered."""
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
        for name, tensor in tensors.items()
    }


def error_of(function: Callable[[], Any]) -> str:
    """The class and the message of the error that a function raises; "" if it does not."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def assert_same_learning(results: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """Each rank has the Fishers, penalties, weights and memory of one process with all samples.

    Between ranks they do not differ at all.
    """
    for result in results:
        for name, value in expected.items():
            if isinstance(value, float):
                assert result[name] == pytest.approx(value, rel=1e-6)
                assert result[name] == results[0][name]
                continue
            assert result[name].keys() == value.keys()
            for key in value.keys() - {"values"}:  # of which the last digits may differ
                torch.testing.assert_close(result[name][key], value[key], rtol=1e-6, atol=1e-9)
                assert torch.equal(result[name][key], results[0][name][key])
