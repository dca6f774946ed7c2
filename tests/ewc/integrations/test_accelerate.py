"""Accelerate needs no callback: `prepare` and `register_for_checkpointing` take it as it is."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.trainers import (
    ACCUMULATED,
    CLIP,
    STEPS,
    TOKENS,
    adamw,
    batches,
    distance,
    memory_of,
    plain_loop,
    tiny_gpt2,
    with_memory,
)
from torch import nn

from ewc import EWC


@pytest.fixture(autouse=True)
def own_state() -> None:
    """Accelerate keeps its settings for the whole process."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class Run:
    """A loop as the documentation of Accelerate has it, with a memory."""

    def __init__(self, net: nn.Module, memory: EWC) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
        optimizer, schedule = adamw(net)
        prepared = self.accelerator.prepare(net.train(), optimizer, schedule, batches())
        self.model, self.optimizer, self.schedule, self.loader = prepared
        self.accelerator.register_for_checkpointing(memory)
        memory.attach(self.optimizer)

    def train(self, start: int, stop: int) -> None:
        """Train from one batch to another."""
        for number, batch in enumerate(self.loader):
            if not start <= number < stop:
                continue
            with self.accelerator.accumulate(self.model):
                # Accelerate divides by the number of accumulated batches.
                loss = self.model(**batch, num_items_in_batch=TOKENS).loss * ACCUMULATED
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()


BATCHES = STEPS * ACCUMULATED


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_the_weights_are_those_of_a_plain_loop(curvature: Any) -> None:
    net = tiny_gpt2()
    memory = memory_of(net, curvature)
    Run(net, memory).train(0, BATCHES)
    memory.settle()
    assert distance(net, plain_loop(with_memory(curvature=curvature))) < 1e-5
    assert distance(net, plain_loop(lambda *_: None)) > 1e-3  # the pull mattered


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_the_memory_is_saved_and_loaded_with_the_state(curvature: Any, tmp_path: Path) -> None:
    net = tiny_gpt2()
    run = Run(net, memory_of(net, curvature))
    run.train(0, BATCHES // 2)
    run.accelerator.save_state(str(tmp_path))
    run.train(BATCHES // 2, BATCHES)

    again = tiny_gpt2()
    nn.init.zeros_(again.lm_head.weight)
    memory = EWC(again, strength=1.0, curvature=curvature)
    resumed = Run(again, memory)
    resumed.accelerator.load_state(str(tmp_path))
    assert (memory.tasks, memory.strength) == (("old",), 1000.0)
    resumed.train(BATCHES // 2, BATCHES)
    assert distance(again, net) == 0


def test_a_memory_that_was_not_saved_is_an_error(tmp_path: Path) -> None:
    net = tiny_gpt2()
    run = Run(net, memory_of(net))
    run.accelerator._custom_objects.clear()
    run.accelerator.save_state(str(tmp_path))
    with pytest.raises(RuntimeError, match="Number of custom checkpoints"):
        Run(net, EWC(net, strength=1.0)).accelerator.load_state(str(tmp_path))


def test_no_pull_in_a_step_that_the_scaler_skips() -> None:
    Accelerator(cpu=True)
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]  # scaled, and plain
    for parameter, scaled in zip(parameters, (True, False), strict=True):
        memory = EWC(nn.ParameterList([parameter]), strength=2.0)
        memory.anchor(1.0)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        memory.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        wrapped = AcceleratedOptimizer(optimizer, device_placement=False, scaler=scaler)
        for gradient in (1.0, math.inf, 3.0):  # the second step is skipped
            if scaled:
                scaler.scale(gradient * parameter.sum()).backward()
                wrapped.step()
                wrapped.zero_grad()
            elif gradient < math.inf:
                parameter.grad = torch.full_like(parameter, gradient)
                optimizer.step()
    assert torch.equal(*parameters)
    assert not torch.equal(parameters[0], torch.ones(3))
