"""The pull on AdamW, on a GPT-2 shape of 26 M parameters.

A training step, and the optimizer's step alone, each as a multiple of the same without a memory,
with a learning-rate schedule and without. And the extra memory at the peak, in bytes per parameter,
in a process of its own (`python -m benchmarks.pull`): that of the memory itself, and that of the
pull on top of it.
"""

import subprocess
import sys
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.models import Transformer, transformer_batch
from benchmarks.peak import status_bytes
from benchmarks.tables import ResultRow, ResultTable
from benchmarks.timing import Workload, best_seconds, one_thread, ratios
from ewc.memory import EWC

WIDTH, SEQUENCES, ROUNDS, TRAINING_ROUNDS = 384, 8, 20, 5
PLAIN = "plain"


def tables(*, ours_only: bool) -> Iterator[ResultTable]:
    size = sum(p.numel() for p in make_model().parameters())
    shape = f"GPT-2 shape of {size / 1e6:.1f} M parameters, AdamW fused"
    kinds = {PLAIN: {}, "pull": {"pull": True}, "pull, schedule": {"pull": True, "schedule": True}}
    alone = {name: optimizer_step(**options) for name, options in kinds.items()}
    alone["pull, weight_decay=0"] = optimizer_step(pull=True, weight_decay=0.0)
    yield ResultTable(f"The optimizer's step alone, {shape}", rows(alone, ROUNDS))
    del alone
    whole = {name: training_step(**options) for name, options in kinds.items()}
    yield ResultTable(
        f"A training step of {SEQUENCES}x128 tokens, {shape}", rows(whole, TRAINING_ROUNDS)
    )
    memory, pull = in_a_process()
    peak: list[ResultRow] = [
        {"what": "the memory: precision and anchor", "bytes per parameter": memory / size},
        {"what": "the pull, at its peak", "bytes per parameter": pull / size},
    ]
    yield ResultTable(f"Extra memory, {shape}", peak)


def rows(workloads: dict[str, Workload], rounds: int) -> list[ResultRow]:
    """Time the workloads, the first of which is the plain one."""
    best = best_seconds(workloads, rounds)
    multiples = ratios(best)
    return [
        {"method": name, "milliseconds": 1000 * best[name], "multiple": multiples[name]}
        for name in best
    ]


def make_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(WIDTH)


def make_optimizer(
    model: nn.Module, pull: bool, schedule: bool, weight_decay: float
) -> tuple[AdamW, LambdaLR]:
    """Return an optimizer with a memory of one task attached or not, and its schedule."""
    optimizer = AdamW(model.parameters(), lr=1e-4, fused=True, weight_decay=weight_decay)
    if pull:
        remember(model).attach(optimizer)
    return optimizer, LambdaLR(optimizer, lambda step: 1 / (1 + step) if schedule else 1.0)


def remember(model: nn.Module) -> EWC:
    """Return a memory of one task, with precisions about as large as real ones."""
    memory = EWC(model, strength=100.0)
    memory.anchor({name: 1e-4 * torch.rand_like(p) for name, p in model.named_parameters()})
    return memory


def optimizer_step(
    *, pull: bool = False, schedule: bool = False, weight_decay: float = 0.01
) -> Workload:
    """Return a step of the optimizer with gradients that stay the same."""
    model = make_model()
    optimizer, scheduler = make_optimizer(model, pull, schedule, weight_decay)
    for parameter in model.parameters():
        parameter.grad = 1e-3 * torch.randn_like(parameter)

    def run() -> None:
        optimizer.step()
        scheduler.step()

    return run


def training_step(*, pull: bool = False, schedule: bool = False) -> Workload:
    """Return a forward pass, a backward pass and a step of the optimizer."""
    model, (tokens, targets) = make_model(), transformer_batch(SEQUENCES)
    optimizer, scheduler = make_optimizer(model, pull, schedule, weight_decay=0.01)

    def run() -> None:
        optimizer.zero_grad()
        cross_entropy(model(tokens).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
        scheduler.step()

    return run


def in_a_process() -> tuple[int, int]:
    """Measure `extra_bytes` in a new process."""
    command = [sys.executable, "-m", "benchmarks.pull"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    memory, pull = map(int, output.split())
    return memory, pull


def extra_bytes() -> tuple[int, int]:
    """Return the bytes of the memory, and the peak of a pulled step on top; once per process."""
    model = make_model()
    optimizer, _ = make_optimizer(model, pull=False, schedule=False, weight_decay=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    memory = remember(model)
    well = memory.state_dict()
    size = sum(tensor.nbytes for key, tensor in well.items() if key != "values")
    del well
    memory.attach(optimizer)
    torch.zeros(status_bytes("VmHWM") - status_bytes("VmRSS"), dtype=torch.uint8)  # up to the peak
    before = status_bytes("VmHWM")
    filled = torch.ones(max(0, before - status_bytes("VmRSS")), dtype=torch.uint8)
    for _ in range(3):
        optimizer.step()
    del filled
    return size, status_bytes("VmHWM") - before


if __name__ == "__main__":
    one_thread()
    print(*extra_bytes())
