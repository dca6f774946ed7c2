"""Several memories in one `Trainer`: each is saved and restored under a name of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.trainers import BATCH, RATE, ROWS, STEPS, distance, memory_of, tiny_gpt2, two_memories
from torch import nn
from transformers import Trainer, TrainingArguments

from ewc import EWC, EWCWarning
from ewc.integrations.transformers import EWCCallback

HALF = STEPS // 2


def make_trainer(model: nn.Module, directory: Path, *callbacks: EWCCallback) -> Trainer:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "save_steps": HALF,
        "learning_rate": RATE,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    args = TrainingArguments(output_dir=str(directory), **settings)
    return Trainer(model, args, train_dataset=ROWS, callbacks=list(callbacks))


def named(old: EWC, even: EWC) -> tuple[EWCCallback, EWCCallback]:
    return EWCCallback(old), EWCCallback(even, name="even")


def attached(trainer: Trainer) -> bool:
    """Whether anything is attached to the optimizer, if there is one."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    return optimizer is not None and bool(optimizer._optimizer_step_post_hooks)


def test_two_memories_are_resumed_each_as_it_was(tmp_path: Path) -> None:
    whole = tiny_gpt2(dropout=0.1)
    make_trainer(whole, tmp_path, *named(*two_memories(whole))).train()

    resumed = tiny_gpt2(dropout=0.1)
    nn.init.zeros_(resumed.lm_head.weight)
    old, even = EWC(resumed, strength=1.0), EWC(resumed, strength=1.0)
    trainer = make_trainer(resumed, tmp_path, *named(old, even))
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{HALF}"))
    assert distance(resumed, whole) == 0
    assert (old.tasks, old.strength) == (("old",), 1000.0)
    assert (even.tasks, even.strength) == (("even",), 7.0)

    without = tiny_gpt2(dropout=0.1)
    make_trainer(without, tmp_path / "without", EWCCallback(memory_of(without))).train()
    assert distance(without, whole) > 1e-3  # the second one mattered


def test_the_default_name_is_that_of_older_checkpoints(tmp_path: Path) -> None:
    model = tiny_gpt2()
    make_trainer(model, tmp_path, *named(*two_memories(model))).train()
    checkpoint = tmp_path / f"checkpoint-{HALF}"
    files = {file.name for file in checkpoint.glob("ewc*")}
    assert files == {"ewc_memory.safetensors", "ewc_memory_even.safetensors"}
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert {"ewc", "ewc_even"} <= state["stateful_callbacks"].keys()


def test_a_memory_that_was_not_there_before_is_told(tmp_path: Path) -> None:
    model = tiny_gpt2()
    make_trainer(model, tmp_path, EWCCallback(memory_of(model))).train()
    checkpoint = str(tmp_path / f"checkpoint-{HALF}")
    trainer = make_trainer(model, tmp_path, *named(*two_memories(model)))
    with pytest.warns(EWCWarning, match=r"without a memory named 'even': .* tasks \['even'\]"):
        trainer.train(resume_from_checkpoint=checkpoint)


@pytest.mark.parametrize("name", ["ewc", "even"])
def test_the_same_name_twice_is_refused(name: str, tmp_path: Path) -> None:
    model = tiny_gpt2()
    both = [EWCCallback(memory, name=name) for memory in two_memories(model)]
    with pytest.raises(ValueError, match=f"a name of its own for each .* got '{name}' twice"):
        make_trainer(model, tmp_path, *both)


def test_a_callback_with_the_same_name_that_is_added_later(tmp_path: Path) -> None:
    model = tiny_gpt2()
    trainer = make_trainer(model, tmp_path, *named(*two_memories(model)))
    extra = EWCCallback(EWC(model, strength=1.0))
    trainer.add_callback(extra)
    with pytest.raises(ValueError, match="expected a name of its own for each memory"):
        trainer.train()
    assert not attached(trainer)
    assert distance(model, tiny_gpt2()) == 0
    trainer.remove_callback(extra)
    trainer.train()
    trainer.train()  # its own name is no other's
