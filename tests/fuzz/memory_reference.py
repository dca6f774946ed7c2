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
    statistics: str
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

    def likeness(self, model: nn.Module, names: tuple[str, ...]) -> float | None:
        """The cosine of parameters and where they are pulled to; None if nothing pulls on them."""
        now, there = [], []
        for name in names:
            wells = [(f[name], anchor[name]) for f, anchor in self.wells() if name in f]
            if wells:
                shape = model.get_parameter(name).shape
                total = sum(padded(f, shape) for f, _ in wells)
                moment = sum(padded(f * anchor, shape) for f, anchor in wells)
                held = total > 0
                now.append(model.get_parameter(name).detach()[held])
                there.append((moment / total)[held])
        if not now:
            return None
        a, b = torch.cat(now), torch.cat(there)
        if float(a.norm()) == 0 or float(b.norm()) == 0:
            return 1.0 if torch.equal(a, b) else 0.0
        return float(a @ b / (a.norm() * b.norm()))


class Momenta:
    """The momentum of every step since a memory is attached, and which parameters stepped."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float, set[int]]] = []  # μ, dampening, ids

    def record(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:  # there is one
            stepped = {id(p) for p in group["params"] if p.grad is not None}
            self.steps.append((group["momentum"], group.get("dampening", 0.0), stepped))

    def gain(self, parameter: Tensor, group: dict, known: bool) -> float:
        """η / lr: how often a gradient that stays the same is in the buffer, step by step."""
        momentum, dampening = group["momentum"], group.get("dampening", 0.0)
        if momentum == 0:
            return 1.0
        if not known:  # it never stepped, and has no buffer
            return (1 - dampening) / (1 - momentum)
        first = self.steps[0][0]
        total = (1 - self.steps[0][1]) / (1 - first) if first else 0.0
        for then, dampened, stepped in self.steps:
            if then and id(parameter) in stepped:
                total = then * total + 1 - dampened
        return 1 + momentum * total if group.get("nesterov") else total


def padded(tensor: Tensor, shape: torch.Size) -> Tensor:
    grown = torch.zeros(shape, dtype=tensor.dtype)
    grown[tuple(slice(size) for size in tensor.shape)] = tensor
    return grown


def naive_step(
    model: nn.Module,
    optimizer: Optimizer,
    slot: int,
    memories: list[NaiveMemory],
    momenta: Momenta,
) -> None:
    """One step of an optimizer without hooks, with the pulls of all memories attached to it."""
    groups = list(held(model, optimizer, slot, memories, "gradient"))
    for parameter, _, (precision, moment) in groups:
        gradient = precision * parameter.detach() - moment
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    optimizer.step()
    if "momentum" in optimizer.defaults:
        momenta.record(optimizer)
    with torch.no_grad():
        for parameter, group, pair in held(model, optimizer, slot, memories, "proximal"):
            pull(optimizer, parameter, group, *pair, momenta)


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
    optimizer: Optimizer,
    parameter: nn.Parameter,
    group: dict,
    precision: Tensor,
    moment: Tensor,
    momenta: Momenta,
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
        gain = momenta.gain(parameter, group, bool(state))
        eta = gain * lr / (square.clamp_min(TINY).sqrt() + group["eps"])
    else:
        eta = lr * momenta.gain(parameter, group, bool(state))
    parameter.copy_((parameter + eta * moment) / (1 + eta * precision))


def unbiased(state: dict, group: dict, zero: Tensor) -> Pair:
    """Adam's first and second moment; zero for a weight that was never stepped."""
    if not state:
        return zero, zero
    key = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
    first, second = (1 - beta ** float(state["step"]) for beta in group["betas"])
    return state["exp_avg"] / first, state[key] / second
