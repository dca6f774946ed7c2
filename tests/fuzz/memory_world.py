"""A memory, its model and its optimizers, and beside them the same with a naive memory.

Each operation of a program is a method of `World`. One that makes no sense where it stands, as may
happen when others were deleted, does nothing; so every part of a program is a program.
"""

import contextlib
import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.fisher import fisher_diagonal
from ewc.memory import EWC
from ewc.parameters import select_parameters
from ewc.pull import Pull

from .memory_parts import OPTIMIZERS, Network, drawn
from .memory_reference import Momenta, NaiveMemory, Tensors, naive_step

TOLERANCE = 1e-9


class World:
    """The two memories, and the operations on both."""

    def __init__(self) -> None:
        self.model = Network()
        self.twin = copy.deepcopy(self.model)
        self.memories: list[EWC] = []
        self.naive: list[NaiveMemory] = []
        self.optimizers: dict[int, tuple[Optimizer, Optimizer]] = {}
        self.momenta: dict[int, Momenta] = {}  # by optimizer, since a memory is attached to it
        self.handles: dict[tuple[int, int], Pull] = {}  # (memory, optimizer)
        self.blocks: dict[int, contextlib.ExitStack] = {}  # of `without`, by memory
        self.saved: dict[int, tuple[dict[str, Tensor], NaiveMemory, dict[str, torch.Size]]] = {}
        self.move(seed=0, size=1.0)

    # the weights

    def move(self, seed: int, size: float) -> None:
        for model in (self.model, self.twin):
            noise = drawn(model, seed)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.mul_(0.5).add_(noise[name], alpha=size)

    def add_phase(self) -> None:
        """Give the model a complex parameter, which no memory can hold."""
        if not self.memories and not self.optimizers and self.model.phase is None:
            for model in (self.model, self.twin):
                model.phase = nn.Parameter(torch.full((4,), 0.6 + 0.8j, dtype=torch.complex128))

    def freeze(self, part: str, frozen: bool) -> None:
        for model in (self.model, self.twin):
            model.get_submodule(part).requires_grad_(not frozen)

    def grow(self) -> None:
        old = self.model.head.out_features
        if old < 5:
            for model in (self.model, self.twin):
                model.head = nn.Linear(4, old + 1).double()
            self.twin.load_state_dict(self.model.state_dict())

    def replace_head(self, seed: int, same_weights: bool) -> None:
        """Put another layer in the place of the head, with its weights or with new ones."""
        heads = [nn.Linear(4, self.twin.head.out_features).double() for _ in range(2)]
        with torch.no_grad():
            for name, parameter in heads[0].named_parameters():
                old = self.twin.head.get_parameter(name)
                new = torch.randn(old.shape, generator=torch.Generator().manual_seed(seed))
                parameter.copy_(old if same_weights else new)
        heads[1].load_state_dict(heads[0].state_dict())
        self.model.head, self.twin.head = heads
        for number, (memory, naive) in enumerate(zip(self.memories, self.naive, strict=True)):
            likeness = naive.likeness(self.twin, ("head.weight", "head.bias"))
            told = self._tells(memory)
            if not memory.penalty().requires_grad:
                assert not told
            elif likeness is None or abs(likeness - 0.5) > 1e-6:
                expected = likeness is not None and likeness < 0.5
                assert told == expected, f"a head of likeness {likeness}: memory {number}: {told}"

    def _tells(self, memory: EWC) -> bool:
        """Whether the memory says that parameters were replaced."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            penalty = memory.penalty()
            if penalty.requires_grad:  # it is told when a gradient flows
                gradient(penalty, [p for p in self.model.parameters() if p.requires_grad])
        return any("are new parameters" in str(one.message) for one in caught)

    def shift_buffer(self, seed: int) -> None:
        """Move a buffer: memories with tasks notice, those without have nothing to lose."""
        noise = torch.randn(4, generator=torch.Generator().manual_seed(seed)).double()
        for model in (self.model, self.twin):
            model.shift += noise
        for memory, naive in zip(self.memories, self.naive, strict=True):
            memory._buffer_check.check(self.model, memory._is_protected)
            if naive.tasks and memory._is_protected("body.weight"):
                assert memory._buffer_check._warned, "a buffer moved, and nothing was said"

    def forward(self, seed: int, training: bool) -> None:
        """Run the model; its norm follows the data unless a memory holds the statistics."""
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)).double()
        held = any(
            naive.statistics == "hold"
            and any({"norm.weight", "norm.bias"} & p.keys() for p, _ in naive.tasks.values())
            for naive in self.naive
        )
        self.model.train(training)
        self.twin.train(training)
        self.twin.norm.train(training and not held)
        with torch.no_grad():
            real, expected = self.model(x), self.twin(x)
        same("the outputs", real, expected, 1 + float(expected.abs().max()))
        assert self.model.norm.training == training, "the mode of the norm changed"
        for name, buffer in self.twin.named_buffers():
            same(f"the buffer {name}", self.model.get_buffer(name), buffer, 1.0)

    # the memories

    def memory(self, **options: Any) -> None:
        if self.model.phase is not None and options["parameters"] in (None, "!head.*"):
            options["parameters"] = ("!phase", *filter(None, [options["parameters"]]))
        if len(self.memories) < 3 and self._selectable(options["parameters"]):
            self.memories.append(EWC(self.model, **options))
            self.naive.append(NaiveMemory(**options))

    def anchor(self, memory: int, task: str | None, precision: float, seed: int | None) -> None:
        if (both := self._pair(memory)) and self._selectable(both[1].parameters):
            real, naive = both
            selected = select_parameters(self.model, naive.parameters)
            precisions = {name: torch.full_like(p, precision) for name, p in selected.items()}
            if seed is not None:  # with many zeros, as a Fisher has
                noise = drawn(self.model, seed)
                for name, tensor in precisions.items():
                    tensor.mul_(noise[name].clamp_min(0.0).square())
            given = precision if seed is None else precisions
            self._hold(naive, task, lambda: real.anchor(given, task=task) or precisions)

    def consolidate(self, memory: int, task: str | None, seed: int) -> None:
        if (both := self._pair(memory)) and self._selectable(both[1].parameters):
            real, naive = both
            generator = torch.Generator().manual_seed(seed)
            data = [torch.randn(5, 3, generator=generator, dtype=torch.float64)]
            if seed % 2:  # a ready Fisher
                selected = select_parameters(self.model, naive.parameters)
                data = fisher_diagonal(self.model, data, parameters=selected.__contains__)
            self._hold(naive, task, lambda: real.consolidate(data, task=task))

    def _hold(self, naive: NaiveMemory, task: str | None, hold: Callable[[], Tensors]) -> None:
        if task in naive.tasks and not naive.keep_tasks:
            return self._refused(ValueError, hold)
        numbers = range(len(naive.tasks) + 1, 99)
        new = next(f"task {n}" for n in numbers if f"task {n}" not in naive.tasks)
        precision = hold()
        weights = {name: p.detach() for name, p in self.twin.named_parameters()}
        anchor = {name: weights[name] for name in precision}
        return naive.hold(new if task is None else task, precision, anchor)

    def strength(self, memory: int, value: float) -> None:
        if both := self._pair(memory):
            both[0].strength = both[1].strength = value

    def forget(self, memory: int, task: str) -> None:
        if both := self._pair(memory):
            real, naive = both
            if not naive.keep_tasks or task not in naive.tasks:
                error = ValueError if naive.keep_tasks else RuntimeError
                return self._refused(error, lambda: real.forget(task))
            real.forget(task)
            del naive.tasks[task]
        return None

    def leave_out(self, memory: int, tasks: list[str]) -> None:
        if (both := self._pair(memory)) and both[1].keep_tasks:
            known = [task for task in tasks if task in both[1].tasks]
            block = self.blocks.setdefault(memory, contextlib.ExitStack())
            block.enter_context(both[0].without(*known))
            both[1].aside += known

    def let_in(self, memory: int) -> None:
        if both := self._pair(memory):
            self.blocks.pop(memory, contextlib.ExitStack()).close()
            both[1].aside.clear()

    # the optimizers

    def optimizer(self, slot: int, kind: str, part: str, **options: Any) -> None:
        made = []
        if self.model.phase is not None:
            options = {}  # the fused forms do not take complex parameters
        for model, own in ((self.model, options), (self.twin, {})):
            parameters = list((model.get_submodule(part) if part else model).parameters())
            made.append(OPTIMIZERS[kind](parameters, **own))
        self.optimizers[slot] = (made[0], made[1])
        for memory, naive in enumerate(self.naive):
            naive.attached.pop(slot, None)
            self.handles.pop((memory, slot), None)
        self.momenta.pop(slot, None)

    def momentum(self, slot: int, value: float) -> None:
        """Do what a schedule of the momentum does; for Adam it is the first beta."""
        for optimizer in self.optimizers.get(slot, ()):
            for group in optimizer.param_groups:
                if "betas" in group:
                    group["betas"] = (value, group["betas"][1])
                elif optimizer.defaults["momentum"] > 0:
                    # RMSprop itself fails where a momentum of 0 grows: it has no buffer then.
                    group["momentum"] = max(value, 0.1) if "alpha" in group else value

    def reload(self, slot: int) -> None:
        """Load the state of an optimizer into itself; then nobody knows what its buffers have."""
        for optimizer in self.optimizers.get(slot, ()):
            optimizer.load_state_dict(optimizer.state_dict())
        self.momenta.pop(slot, None)

    def attach(self, memory: int, slot: int, how: str) -> None:
        both, optimizers = self._pair(memory), self.optimizers.get(slot)
        if both is None or optimizers is None or not self._selectable(both[1].parameters):
            return None
        if slot in both[1].attached:
            return self._refused(RuntimeError, lambda: both[0].attach(optimizers[0]))
        selected = set(map(id, select_parameters(self.model, both[1].parameters).values()))
        groups = optimizers[0].param_groups
        if not any(id(p) in selected for group in groups for p in group["params"]):
            return self._refused(ValueError, lambda: both[0].attach(optimizers[0]))
        self.handles[memory, slot] = both[0].attach(optimizers[0], how=how)
        both[1].attached[slot] = how
        return None

    def detach(self, memory: int, slot: int) -> None:
        if (memory, slot) in self.handles:
            self.handles.pop((memory, slot)).remove()
            del self.naive[memory].attached[slot]
            if not any(slot in naive.attached for naive in self.naive):
                self.momenta.pop(slot, None)

    def step(self, slot: int, seed: int, without_gradient: list[str]) -> None:
        if slot not in self.optimizers:
            return
        for model, optimizer in zip((self.model, self.twin), self.optimizers[slot], strict=True):
            optimizer.zero_grad()
            gradients = drawn(model, seed)
            for name, parameter in model.named_parameters():
                parameter.grad = None
                if parameter.requires_grad and name not in without_gradient:
                    parameter.grad = gradients[name]
        real, twin = self.optimizers[slot]
        real.step()
        attached = any(slot in naive.attached for naive in self.naive)
        momenta = self.momenta.setdefault(slot, Momenta()) if attached else Momenta()
        naive_step(self.twin, twin, slot, self.naive, momenta)
        if max(float(p.detach().abs().max()) for p in self.twin.parameters()) > 100:
            self.check()  # an explicit pull that diverges is checked once and then stopped
            for model in (self.model, self.twin):
                for parameter in model.parameters():
                    nn.init.ones_(parameter)

    # saved, loaded and copied

    def save(self, memory: int) -> None:
        if both := self._pair(memory):
            held = {name for precision, _ in both[1].tasks.values() for name in precision}
            shapes = {name: self.twin.get_parameter(name).shape for name in held}
            self.saved[memory] = (both[0].state_dict(), copy.deepcopy(both[1]), shapes)

    def load(self, memory: int, fresh: bool) -> None:
        if (both := self._pair(memory)) is None or memory not in self.saved:
            return None
        state, saved, shapes = self.saved[memory]
        if any(self.twin.get_parameter(name).shape != shape for name, shape in shapes.items()):
            return self._refused(ValueError, lambda: both[0].load_state_dict(state))
        naive = both[1]
        if fresh and self._selectable(naive.parameters):
            self._replace_by_fresh(memory)
        self.memories[memory].load_state_dict(state)
        naive.tasks = copy.deepcopy(saved.tasks)
        naive.strength, naive.decay = saved.strength, saved.decay
        return None

    def _replace_by_fresh(self, memory: int) -> None:
        naive = self.naive[memory]
        self.let_in(memory)
        self.memories[memory]._held.release()  # it is dropped, and its model goes on
        new = EWC(
            self.model,
            strength=1.0,
            keep_tasks=naive.keep_tasks,
            parameters=naive.parameters,
            statistics=naive.statistics,
        )
        for slot, how in list(naive.attached.items()):
            self.detach(memory, slot)
            with contextlib.suppress(ValueError):  # it no longer has any of the parameters
                self.handles[memory, slot] = new.attach(self.optimizers[slot][0], how=how)
                naive.attached[slot] = how
        self.memories[memory] = new

    def copy(self, pickled: bool) -> None:
        """Go on with copies of everything; the tasks left out are back in them."""
        optimizers = {slot: real for slot, (real, _) in self.optimizers.items()}
        things = (self.memories, optimizers, self.handles, self.model)
        copied = pickle.loads(pickle.dumps(things)) if pickled else copy.deepcopy(things)
        for memory in range(len(self.memories)):
            self.let_in(memory)
        self.memories, optimizers, self.handles, self.model = copied
        for slot, (_, twin) in self.optimizers.items():
            self.optimizers[slot] = (optimizers[slot], twin)

    # helpers

    def _pair(self, memory: int) -> tuple[EWC, NaiveMemory] | None:
        if memory >= len(self.memories):
            return None
        return self.memories[memory], self.naive[memory]

    def _selectable(self, parameters: str | None) -> bool:
        try:
            return bool(select_parameters(self.model, parameters))
        except ValueError:
            return False

    def _refused(self, error: type[Exception], call: Callable[[], Any]) -> None:
        """What makes no sense must raise; `check` sees that it changed nothing."""
        try:
            call()
        except error:
            return
        raise AssertionError(f"expected {error.__name__}")

    def check(self) -> None:
        """Raise unless both are the same: weights, tasks, penalties and their gradients."""
        real, naive = dict(self.model.named_parameters()), dict(self.twin.named_parameters())
        for name in naive:
            scale = 1 + float(naive[name].detach().abs().max())
            same(f"the weights {name}", real[name].detach(), naive[name].detach(), scale)
        for number, (memory, reference) in enumerate(zip(self.memories, self.naive, strict=True)):
            what = f"of memory {number}"
            told = (memory.tasks, memory.strength, memory.decay)
            expected = (tuple(reference.tasks), reference.strength, reference.decay)
            assert told == expected, f"tasks, strength and decay {what}: {told}, not {expected}"
            penalty, wanted = memory.penalty(), reference.penalty(self.twin).detach()
            same(f"the penalty {what}", penalty.detach(), wanted, float(wanted) + 1e-12)
            trained = [name for name, p in naive.items() if p.requires_grad]
            gradients = gradient(penalty, [real[name] for name in trained])
            for name, g in zip(trained, gradients, strict=True):
                pair = reference.pair(name, naive[name])
                precision, moment = pair or (torch.zeros(()), torch.zeros(()))
                weight = naive[name].detach()
                scale = float((precision * weight).abs().max() + moment.abs().max()) + 1e-12
                same(f"the gradient {what} at {name}", g, precision * weight - moment, scale)


def gradient(penalty: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    if not penalty.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    found = torch.autograd.grad(penalty, parameters, allow_unused=True, materialize_grads=True)
    return list(found)


def same(what: str, actual: Tensor, expected: Tensor, scale: float) -> None:
    error = float((actual - expected).abs().max())
    assert error <= TOLERANCE * scale, f"{what}: off by {error / scale:.1e} of {scale:.3g}"
