"""The memory as the equations have it: a dict of tasks, and every sum written out."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Tensors = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]  # Σ λF and Σ λFθ*, of the shape that the parameter has now
TINY = 1e-36


@dataclass
class NaiveMemory:
    """What each task left behind, oldest first, and all that says how it pulls."""

    strength: float
    decay: float
    keep_tasks: bool
    parameters: str | None
    tasks: dict[str, tuple[Tensors, Tensors]] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)
    attached: dict[int, str] = field(default_factory=dict)  # optimizer -> how

    def hold(self, task: str, precision: Tensors, anchor: Tensors) -> None:
        """Make a task the newest."""
        self.tasks.pop(task, None)
        self.tasks[task] = copy.deepcopy((precision, anchor))

    def wells(self) -> list[tuple[Tensors, Tensors]]:
        """The wells that pull: one per task, or with decay one in all, at the newest solution."""
        active = [well for task, well in self.tasks.items() if task not in self.aside]
        if self.decay == 1:
            return active
        precision: Tensors = {}
        anchor: Tensors = {}
        for new_precision, new_anchor in active:
            precision = {name: self.decay * tensor for name, tensor in precision.items()}
            for name, tensor in new_precision.items():
                old = precision.get(name, torch.zeros_like(tensor))
                precision[name] = tensor + padded(old, tensor.shape)
            anchor |= new_anchor
        return [(precision, anchor)] if active else []

    def penalty(self, model: nn.Module) -> Tensor:
        """(λ / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)², on the part that was there at consolidation."""
        parameters = dict(model.named_parameters())
        total = torch.zeros((), dtype=torch.float64)
        for precision, anchor in self.wells():
            for name, f in precision.items():
                there = parameters[name][tuple(slice(size) for size in f.shape)]
                total = total + self.strength / 2 * (f * (there - anchor[name]) ** 2).sum()
        return total

    def pair(self, name: str, parameter: Tensor) -> Pair | None:
        """Σ_t λF_t and Σ_t λF_t θ*_t of a parameter, None if no task holds it."""
        pairs = [
            (padded(f[name], parameter.shape), padded(f[name] * anchor[name], parameter.shape))
            for f, anchor in self.wells()
            if name in f
        ]
        if not pairs or self.strength == 0:
            return None
        return (
            self.strength * torch.stack([f for f, _ in pairs]).sum(0),
            self.strength * torch.stack([moment for _, moment in pairs]).sum(0),
        )


def padded(tensor: Tensor, shape: torch.Size) -> Tensor:
    grown = torch.zeros(shape, dtype=tensor.dtype)
    grown[tuple(slice(size) for size in tensor.shape)] = tensor
    return grown


def naive_step(
    model: nn.Module, optimizer: Optimizer, slot: int, memories: list[NaiveMemory]
) -> None:
    """One step of an optimizer without hooks, with the pulls of all memories attached to it."""
    groups = list(held(model, optimizer, slot, memories, "gradient"))
    for parameter, _, (precision, moment) in groups:
        gradient = precision * parameter.detach() - moment
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    optimizer.step()
    with torch.no_grad():
        for parameter, group, pair in held(model, optimizer, slot, memories, "proximal"):
            pull(optimizer, parameter, group, *pair)


def held(
    model: nn.Module, optimizer: Optimizer, slot: int, memories: list[NaiveMemory], how: str
) -> Iterator[tuple[nn.Parameter, dict, Pair]]:
    """The parameters that memories pull on in one way, with their sums."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names or not parameter.requires_grad:
                continue
            pairs = [
                pair
                for memory in memories
                if memory.attached.get(slot) == how
                if (pair := memory.pair(names[id(parameter)], parameter)) is not None
            ]
            if pairs:
                yield parameter, group, tuple(map(sum, zip(*pairs, strict=True)))


def pull(
    optimizer: Optimizer, parameter: nn.Parameter, group: dict, precision: Tensor, moment: Tensor
) -> None:
    """θ ← (θ + η Σ λFθ*) / (1 + η Σ λF), with what AdamW and centered RMSprop need besides."""
    state = optimizer.state.get(parameter, {})
    lr, zero = float(group["lr"]), torch.zeros_like(parameter)
    if "betas" in group:
        mean, square = unbiased(state, group, zero)
        eta = lr / (square.clamp_min(TINY).sqrt() + group["eps"])
        if group["decoupled_weight_decay"] and parameter.grad is not None:
            step = lr * mean / (square.clamp_min(TINY).sqrt() + group["eps"])
            back = eta * (precision * parameter - moment) / (1 + eta * precision)
            ratio = (1 + back * (2 * step + back) / lr**2).clamp(1e-6, 1.0)
            parameter += lr * group["weight_decay"] * (1 - ratio.sqrt()) * parameter
    elif "alpha" in group:
        square = state.get("square_avg", zero)
        if group["centered"]:
            mean = state.get("grad_avg", zero)
            variance = square - mean**2
            square.copy_(torch.maximum(square, 1.01 * mean**2))
            square = variance
        eta = lr / (square.clamp_min(TINY).sqrt() + group["eps"]) / (1 - group["momentum"])
    else:
        momentum = group["momentum"]
        eta = lr * ((1 - group["dampening"]) / (1 - momentum) if momentum else 1.0)
    parameter.copy_((parameter + eta * moment) / (1 + eta * precision))


def unbiased(state: dict, group: dict, zero: Tensor) -> Pair:
    """Adam's first and second moment; zero for a weight that was never stepped."""
    if not state:
        return zero, zero
    key = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
    first, second = (1 - beta ** float(state["step"]) for beta in group["betas"])
    return state["exp_avg"] / first, state[key] / second
