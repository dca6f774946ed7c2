"""A memory of W = W₀ + s B A pulls on the factors: the chain rule, in optimizers and trainers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.lora import (
    PREFIX,
    TEXT,
    adam,
    data,
    factors,
    gpt2_with_lora,
    move,
    small_net,
    with_lora,
)
from support.trainers import ROWS, distance
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from ewc import EWC, EWCWarning
from ewc.integrations.peft import LoraEWC
from ewc.integrations.transformers import EWCCallback


def trained(
    attach: Callable[[nn.Module, LoraEWC], list[torch.optim.Optimizer]], loss_has_penalty: bool
) -> nn.Module:
    """Train with a memory that either pulls or is part of the loss."""
    model = with_lora(small_net())
    memory = LoraEWC(model, strength=20.0)
    memory.consolidate([data()[0]])
    optimizers = attach(model, memory)
    x, y = data(1)
    for _ in range(5):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        (loss + memory.penalty() if loss_has_penalty else loss).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model


def test_the_pull_is_the_gradient_of_the_penalty() -> None:
    def attached(model: nn.Module, memory: LoraEWC) -> list[torch.optim.Optimizer]:
        optimizer = adam(factors(model))
        memory.attach(optimizer)
        return [optimizer]

    def in_groups(model: nn.Module, memory: LoraEWC) -> list[torch.optim.Optimizer]:
        optimizer = adam([{"params": [factor]} for factor in factors(model)])
        memory.attach(optimizer)
        return [optimizer]

    expected = trained(lambda model, memory: [adam(factors(model))], True)
    free = trained(lambda model, memory: [adam(factors(model))], False)
    assert distance(expected, free) > 1e-2
    for attach in (attached, in_groups):
        assert distance(trained(attach, False), expected) < 1e-12


def test_an_optimizer_of_one_factor_pulls_on_it_alone() -> None:
    model = with_lora(small_net())
    memory = LoraEWC(model, strength=2.0)
    memory.anchor(1.0)
    move(model, seed=1)
    expected = torch.autograd.grad(memory.penalty(), factors(model))
    optimizers = [torch.optim.SGD([factor], lr=0.0) for factor in factors(model)]
    for optimizer in optimizers:
        memory.attach(optimizer)
    for number, (factor, gradient) in enumerate(zip(factors(model), expected, strict=True)):
        optimizers[number].step()
        torch.testing.assert_close(factor.grad, gradient)
        assert all(other.grad is None for other in factors(model)[number + 1 :])


def test_two_memories_pull_together_and_lbfgs_sees_the_whole_objective() -> None:
    def ended(how: str) -> nn.Module:
        model = with_lora(small_net())
        memories = [LoraEWC(model, strength=5.0), EWC(model, strength=0.5)]
        for memory in memories:
            memory.anchor(1.0)
        optimizer = torch.optim.LBFGS(factors(model), lr=0.5, max_iter=4)
        x, y = data(1)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            if how == "loss":
                loss = loss + sum(memory.penalty() for memory in memories)
            loss.backward()
            return loss

        if how == "pull":
            for memory in memories:
                memory.attach(optimizer, how="gradient")
        for _ in range(3):
            optimizer.step(closure)
        return model

    assert distance(ended("loss"), ended("pull")) < 1e-10
    assert distance(ended("loss"), ended("free")) > 1e-2


def test_a_trainer_pulls_through_the_callback(tmp_path: Path) -> None:
    ended = {}
    for strength in (0.0, 1000.0):
        model = gpt2_with_lora().float()
        memory = LoraEWC(model, strength=strength)
        memory.consolidate([TEXT], kind="empirical", task="old")
        args = TrainingArguments(
            **{"output_dir": str(tmp_path), "max_steps": 6, "per_device_train_batch_size": 4},
            **{"learning_rate": 1e-2, "use_cpu": True, "report_to": [], "disable_tqdm": True},
        )
        callback = EWCCallback(memory, how="gradient", consolidate={"kind": "empirical"})
        Trainer(model, args, train_dataset=ROWS, callbacks=[callback]).train()
        ended[strength] = memory._wells.total.bottom  # how far apart both tasks lie
        assert memory.tasks == ("old", "task 2")
    assert 0 < ended[1000.0] < 0.5 * ended[0.0]


def test_a_budget_bounds_the_estimated_rise() -> None:
    rises = {}
    for budget in (1e-3, 1e3):
        model = with_lora(small_net())
        memory = LoraEWC(model, budget=budget)
        memory.consolidate([data()[0]])
        optimizer = adam(factors(model))
        memory.attach(optimizer)
        x, y = data(1)
        for _ in range(150):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        rises[budget] = memory.estimated_rise()
    assert rises[1e-3] < 3e-3
    assert rises[1e3] > 0.03


def test_other_trainable_parameters_are_remembered_as_they_are() -> None:
    model = with_lora(small_net(), target_modules=["0"], modules_to_save=["2"])
    memory = LoraEWC(model, strength=1.0)
    fisher = memory.consolidate([data()[0]])
    head = f"{PREFIX}2.modules_to_save.default.weight"
    assert set(fisher) == {
        *(f"{PREFIX}0.base_layer.weight", head),
        f"{PREFIX}2.modules_to_save.default.bias",
    }
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    memory.attach(optimizer)
    with torch.no_grad():
        model.get_parameter(head).add_(1.0)
    before = model.get_parameter(head).detach().clone()
    optimizer.step()
    torch.testing.assert_close(model.get_parameter(head), before - 1e-3 * fisher[head])


def test_autocast_does_not_round_the_penalty() -> None:
    model = with_lora(small_net().float())
    memory = LoraEWC(model, strength=1.0)
    memory.anchor(1.0)
    move(model, seed=1)
    expected = memory.penalty()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(memory.penalty(), expected)


def test_half_precision_is_summed_in_float32() -> None:
    model = with_lora(small_net().bfloat16())
    memory = LoraEWC(model, strength=1.0)
    fisher = memory.consolidate([data()[0].bfloat16()])
    assert {value.dtype for value in fisher.values()} == {torch.float32}
    move(model, seed=1)
    optimizer = torch.optim.SGD(factors(model), lr=0.1)
    memory.attach(optimizer)
    optimizer.step()
    assert {factor.grad.dtype for factor in factors(model) if factor.grad is not None} == {
        torch.bfloat16
    }


def test_a_proximal_pull_is_refused() -> None:
    model = with_lora(small_net())
    memory = LoraEWC(model, strength=1.0)
    optimizer = adam(factors(model))
    with pytest.raises(ValueError, match="expected how='gradient', got how='proximal'"):
        memory.attach(optimizer, how="proximal")
    with pytest.raises(ValueError, match="compiled=True is for how='proximal'"):
        memory.attach(optimizer, compiled=True)
    with pytest.raises(ValueError, match="expected an optimizer of the memory's parameters"):
        memory.attach(adam([nn.Parameter(torch.zeros(1))]))


def test_factors_without_an_optimizer_are_told_of() -> None:
    model = with_lora(small_net())
    memory = LoraEWC(model, strength=1.0)
    memory.anchor(1.0)
    optimizer = adam(factors(model)[:2])  # of the first layer
    memory.attach(optimizer)
    with pytest.warns(
        EWCWarning, match=r"protects 'base_model\.model\.2\.base_layer\.weight', but"
    ):
        optimizer.step()
