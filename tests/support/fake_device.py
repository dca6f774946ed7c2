"""A device that no machine needs to have: tensors on it have shapes, types and a device, no values.

Tensors of different devices in one operation raise, as on a GPU. A value that is read, for which
the CPU would wait for a GPU, is counted and answered with a made-up one.

`set_up` changes the whole process, so that all of this runs in one of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from ewc import EWC

NAME = "fakegpu"
ANSWER = 0.5  # to every read of a number
aten = torch.ops.aten
READS = (aten._local_scalar_dense.default, aten.equal.default)


def set_up() -> None:
    """Make the device known to torch."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)


class Reads(TorchDispatchMode):
    """Counts the values that are read from the device, and the copies that are made of its tensors.

    A read of an integer, which counts what is wrong in this package, is answered with 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values = 0
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            self.values += args[0].device.type != "cpu"
            if func is aten.equal.default or args[0].dtype is torch.bool:
                return True
            return ANSWER if args[0].is_floating_point() else 0
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type == "cpu":
            tensors = [one for one in args if isinstance(one, Tensor)]
            self.copies += any(one.device.type != "cpu" for one in tensors)
        return result

    def take(self) -> int:
        """Return how many values and tensors came to the CPU since this was called last."""
        count, self.values, self.copies = self.values + self.copies, 0, 0
        return count


@contextmanager
def fake_device() -> Iterator[Reads]:
    """Let all tensors be fakes, on the CPU or on the device, while the `with` block runs."""
    with FakeTensorMode(), Reads() as reads:
        yield reads


class Affine(nn.Module):
    """A linear layer, whose parameters are not initialized."""

    def __init__(self, device: str = NAME, bias_device: str = NAME) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 4, device=device))
        self.bias = nn.Parameter(torch.empty(3, device=bias_device))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T + self.bias


def adam(kind: type[Optimizer], **options: Any) -> Callable[..., Optimizer]:
    return lambda parameters: kind(parameters, lr=1e-3, **options)


def adam_with_rate_on_device(parameters: Any) -> Optimizer:
    return optim.Adam(parameters, lr=torch.full((), 1e-3, device=NAME), capturable=True)


DECOUPLED = {"weight_decay": 0.1, "decoupled_weight_decay": True}
MAKE: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "nesterov": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "foreach sgd": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    **{
        f"{options} {name}": adam(kind, **dict.fromkeys(options.split(), True))
        for name, kind in {"adam": optim.Adam, "adamw": optim.AdamW}.items()
        for options in ("", "foreach", "capturable", "capturable foreach", "fused", "amsgrad")
    },
    **{
        f"{'capturable ' * capturable}{name}": adam(kind, capturable=capturable, **options)
        for capturable in (False, True)
        for name, kind, options in (
            ("nadam", optim.NAdam, {}),
            ("radam", optim.RAdam, {}),
            ("decoupled nadam", optim.NAdam, DECOUPLED),
            ("decoupled radam", optim.RAdam, DECOUPLED),
            ("rmsprop", optim.RMSprop, {}),
            ("centered rmsprop", optim.RMSprop, {"centered": True, "momentum": 0.9}),
        )
    },
    "adagrad": lambda parameters: optim.Adagrad(parameters, lr=1e-2),
    "slower adagrad": lambda parameters: optim.Adagrad(parameters, lr=1e-2, lr_decay=0.1),
    "adafactor": lambda parameters: optim.Adafactor(parameters, lr=1e-2),
    "rate on device": adam_with_rate_on_device,
}


def reads_per_step(
    name: str,
    how: Any = "proximal",
    memories: int = 1,
    steps: int = 4,
    scaled: bool = False,
    bias_device: str = NAME,
    **options: Any,
) -> list[int]:
    """Return how many values each step of an optimizer reads.

    Args:
        name: of the optimizer in `MAKE`.
        how: of `attach`.
        memories: how many are attached.
        steps: number of steps.
        scaled: whether a `GradScaler` scales the gradients inside the optimizer.
        bias_device: where one of the two parameters is.
        options: of the memories.
    """
    with fake_device() as reads:
        model = Affine(bias_device=bias_device)
        optimizer = MAKE[name](model.parameters())
        for _ in range(memories):
            memory = EWC(model, **options)
            memory.anchor(1.0, task="A")
            memory.anchor({n: torch.empty_like(p) for n, p in model.named_parameters()})
            memory.attach(optimizer, how)
        if scaled:
            optimizer.found_inf = torch.zeros((), device=NAME)  # type: ignore[attr-defined]
            optimizer.grad_scale = torch.ones((), device=NAME)  # type: ignore[attr-defined]
        counts = []
        reads.take()
        for _ in range(steps):
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter)
            optimizer.step()
            counts.append(reads.take())
        return counts


def without_reads(keep_tasks: Any, values: list[int]) -> dict[str, int]:
    """Do what else a memory does with tensors on the device; return how often each reads a value.

    Args:
        keep_tasks: of the memory.
        values: the plain values in the state of such a memory, which a fake tensor cannot have.
    """
    real = torch.tensor(values, dtype=torch.uint8)
    with fake_device() as reads:
        model, counts = Affine(), {}
        memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
        for task in "AB":
            memory.anchor(1.0, task=task)
        counts["two anchors"] = reads.take()
        loss = model(torch.empty(5, 4, device=NAME)).square().mean() + memory.penalty()
        loss.backward()
        assert loss.device.type == model.weight.grad.device.type == NAME  # type: ignore[union-attr]
        counts["penalty"] = reads.take()
        memory.estimated_rise()
        counts["estimated_rise"] = reads.take()
        state = memory.state_dict()
        kept = [t for key, t in state.items() if key.startswith("task")]
        assert all(t.device.type == NAME for key, t in state.items() if key != "values")
        assert bool(kept) == (keep_tasks is not False)
        counts["state_dict"] = reads.take()
        memory.load_state_dict({**state, "values": real})
        counts["load_state_dict"] = reads.take()
        return counts


def notices() -> tuple[str, int, int]:
    """Return the error of mixed devices, and what is counted of one read and one copy."""
    with fake_device() as reads:
        there, here = torch.ones(3, device=NAME), torch.ones(3)
        error = ""
        try:
            there + here
        except RuntimeError as mixed:
            error = str(mixed)
        float(here.sum())
        float(there.sum())
        value = reads.take()
        there.cpu()
        return error, value, reads.take()
