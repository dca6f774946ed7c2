"""The pull on AdamW and the Fisher, on a GPT-2 shape of 26 M parameters.

A training step, and the optimizer's step alone, each as a multiple of the same without a memory,
with a learning-rate schedule and without; the Fisher, as a multiple of a plain pass. And the extra
memory at the peak, in bytes per parameter, in a process of its own each
(`python -m benchmarks.speed.pull WHAT`).
"""

import sys
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.measure import (
    ResultRow,
    ResultTable,
    Workload,
    best_seconds,
    bytes_in_a_process,
    one_thread,
    ratios,
    status_bytes,
)
from benchmarks.speed.fisher import our_fisher, plain_pass
from benchmarks.speed.models import Transformer, transformer_batch
from ewc.memory import EWC

WIDTH, SEQUENCES, ROUNDS, TRAINING_ROUNDS = 384, 8, 20, 5
FISHER_SEQUENCES, FISHER_ROUNDS = 256, 2
PLAIN = "plain"
PULLS = {PLAIN: False, "pull": True}
MEASURED = {
    "memory": "the memory: precision and anchor",
    "pull": "the pull",
    "plain pass": "a plain forward and backward pass of 8 sequences, without the gradients",
    "fisher": "the Fisher of 8 sequences, without the result",
}


def tables(*, ours_only: bool) -> Iterator[ResultTable]:
    size = sum(p.numel() for p in make_model().parameters())
    shape = f"GPT-2 shape of {size / 1e6:.1f} M parameters, AdamW fused"
    alone = {
        name: optimizer_step(pull, schedule=schedule, weight_decay=weight_decay)
        for name, pull in PULLS.items()
        for schedule, weight_decay, name in kinds(name, pull)
    }
    yield ResultTable(f"The optimizer's step alone, {shape}", rows(alone, ROUNDS))
    del alone
    whole = {name: training_step(pull) for name, pull in PULLS.items()}
    whole["pull, schedule"] = training_step(pull=True, schedule=True)
    yield ResultTable(
        f"A training step of {SEQUENCES}x128 tokens, {shape}", rows(whole, TRAINING_ROUNDS)
    )
    del whole
    yield ResultTable(f"Fisher of {FISHER_SEQUENCES} sequences of 128 tokens, {shape}", fisher())
    yield ResultTable(f"Extra memory at the peak, {shape}", list(memory_rows(size)))


def kinds(name: str, pull: bool) -> Iterator[tuple[bool, float, str]]:
    """Yield schedule or not, the weight decay, and a name of the combination."""
    yield False, 0.01, name
    if pull:
        yield True, 0.01, f"{name}, schedule"
        yield False, 0.0, f"{name}, weight_decay=0"


def fisher() -> list[ResultRow]:
    """Time the Fisher in batches of 8, next to a plain pass over the same."""
    model = make_model()
    batches = [transformer_batch(SEQUENCES) for _ in range(FISHER_SEQUENCES // SEQUENCES)]
    workloads: dict[str, Workload] = {PLAIN: lambda: plain_pass(model, batches)}
    for kind in ("sampled", "empirical"):
        workloads[f"ewc {kind}"] = partial(our_fisher(model, kind), batches)
    return rows(workloads, FISHER_ROUNDS)


def memory_rows(size: int) -> Iterator[ResultRow]:
    """Measure the extra memory, in a process of its own each."""
    for what in MEASURED:
        yield {
            "what": MEASURED[what],
            "bytes per parameter": bytes_in_a_process("benchmarks.speed.pull", what) / size,
        }


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
    pull: bool = False, *, schedule: bool = False, weight_decay: float = 0.01
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


def training_step(pull: bool = False, *, schedule: bool = False) -> Workload:
    """Return a forward pass, a backward pass and a step of the optimizer."""
    model, (tokens, targets) = make_model(), transformer_batch(SEQUENCES)
    optimizer, scheduler = make_optimizer(model, pull, schedule, weight_decay=0.01)

    def run() -> None:
        optimizer.zero_grad()
        cross_entropy(model(tokens).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
        scheduler.step()

    return run


def extra_bytes(what: str) -> int:
    """Return the peak of one of MEASURED, on top of what is in use before; once per process."""
    model = make_model()
    if what == "memory":
        well = remember(model).state_dict()
        return sum(tensor.nbytes for key, tensor in well.items() if key != "values")
    if what in ("plain pass", "fisher"):
        return peak_of_pass(model, what)
    optimizer, _ = make_optimizer(model, False, schedule=False, weight_decay=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    remember(model).attach(optimizer)
    return peak(lambda: [optimizer.step() for _ in range(3)])


def peak_of_pass(model: nn.Module, what: str) -> int:
    """Return the peak of a pass over one batch, less the tensors that it returns."""
    size = sum(p.nbytes for p in model.parameters())
    few, batch = transformer_batch(1), transformer_batch(SEQUENCES)
    if what == "fisher":
        run = our_fisher(model, "empirical")
        run([few])
        return peak(lambda: run([batch])) - size
    plain_pass(model, [few])  # the gradients that it leaves are there before
    model.zero_grad(set_to_none=True)
    return peak(lambda: plain_pass(model, [batch])) - size


def peak(workload: Workload) -> int:
    """Return how far the memory of this process rises above its present size."""
    # Fill up to the highest so far, because the system records the maximum only.
    torch.zeros(status_bytes("VmHWM") - status_bytes("VmRSS"), dtype=torch.uint8)
    before = status_bytes("VmHWM")
    filled = torch.ones(max(0, before - status_bytes("VmRSS")), dtype=torch.uint8)
    workload()
    del filled
    return status_bytes("VmHWM") - before


if __name__ == "__main__":
    one_thread()
    print(extra_bytes(sys.argv[1]))
