"""The callback in the real `Trainer`: the weights of a plain loop, checkpoints, consolidation."""

import runpy
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainers import (
    ACCUMULATED,
    BATCH,
    CLIP,
    EPSILON,
    RATE,
    ROWS,
    STEPS,
    distance,
    memory_of,
    plain_loop,
    tiny_gpt2,
    with_memory,
)
from torch import nn
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainingArguments,
)

import ewc
import ewc.integrations.transformers
from ewc import EWC, EWCWarning, compiled_pull
from ewc.integrations.transformers import FILE_NAME, EWCCallback

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": ACCUMULATED,
    "max_steps": STEPS,
    "max_grad_norm": CLIP,
    "learning_rate": RATE,
    "adam_epsilon": EPSILON,
    "train_sampling_strategy": "sequential",
    "save_strategy": "no",
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
}


def make_trainer(
    model: nn.Module, directory: Path, *callbacks: TrainerCallback, **changed: Any
) -> Trainer:
    args = TrainingArguments(output_dir=str(directory), **(SETTINGS | changed))
    data = changed.pop("train_dataset", ROWS)
    return Trainer(model, args, train_dataset=data, callbacks=list(callbacks))


class StopAt(TrainerCallback):
    """Interrupts training after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == self.step:
            control.should_training_stop = True


class CountPulls(TrainerCallback):
    """Counts the steps of the trainer, to compare with those of the memory."""

    steps = 0

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.steps += 1


@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_the_weights_are_those_of_a_plain_loop(how: Any, tmp_path: Path) -> None:
    model = tiny_gpt2()
    make_trainer(model, tmp_path, EWCCallback(memory_of(model), how=how)).train()
    assert distance(model, plain_loop(with_memory(how))) < 1e-5
    assert distance(model, plain_loop(lambda *_: None)) > 1e-3  # the pull mattered


@pytest.mark.slow
def test_a_compiled_pull_gives_the_same_weights(
    called: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_pull, "SMALLEST", 256)  # numbers: the model is tiny
    model = tiny_gpt2()
    make_trainer(model, tmp_path, EWCCallback(memory_of(model), compiled=True)).train()
    assert called.count("pull_") > STEPS
    called.clear()
    assert distance(model, plain_loop(with_memory())) < 1e-5
    assert not called


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_the_same_with(settings: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_gpt2()
    make_trainer(model, tmp_path, EWCCallback(memory_of(model)), **settings).train()
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled="bf16" in settings)
    assert distance(model, plain_loop(with_memory(), context=autocast)) < 1e-5


def test_an_interrupted_run_ends_where_the_uninterrupted_one_does(tmp_path: Path) -> None:
    save = {"save_strategy": "steps", "save_steps": 3}
    whole = tiny_gpt2(dropout=0.1)
    make_trainer(whole, tmp_path / "whole", EWCCallback(memory_of(whole)), **save).train()

    first = tiny_gpt2(dropout=0.1)
    stopped = [EWCCallback(memory_of(first)), StopAt(3)]
    make_trainer(first, tmp_path / "parts", *stopped, **save).train()
    assert distance(first, whole) > 1e-3

    second = tiny_gpt2(dropout=0.1)
    nn.init.zeros_(second.lm_head.weight)
    memory = EWC(second, strength=1.0)
    trainer = make_trainer(second, tmp_path / "parts", EWCCallback(memory), **save)
    trainer.train(resume_from_checkpoint=True)
    assert distance(second, whole) == 0
    assert (memory.tasks, memory.strength) == (("old",), 1000.0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint at step 3 of a run in another directory."""
    model = tiny_gpt2()
    save = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    make_trainer(model, tmp_path / "before", EWCCallback(memory_of(model)), **save).train()
    return tmp_path / "before" / "checkpoint-3"


def resume(checkpoint: Path, directory: Path, memory: EWC | None = None) -> EWC:
    """Resume a checkpoint with a new model; return the memory, which was empty."""
    memory = memory or EWC(tiny_gpt2(), strength=1.0)
    trainer = make_trainer(memory._parameters.model, directory, EWCCallback(memory), max_steps=4)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return memory


def test_the_memory_lies_beside_the_optimizer(checkpoint: Path) -> None:
    assert {FILE_NAME, "optimizer.pt"} <= {file.name for file in checkpoint.iterdir()}


def test_a_checkpoint_of_another_directory_is_resumed(checkpoint: Path, tmp_path: Path) -> None:
    assert resume(checkpoint, tmp_path / "now").tasks == ("old",)


def test_a_checkpoint_that_was_moved_with_its_directory(checkpoint: Path, tmp_path: Path) -> None:
    shutil.move(tmp_path / "before", tmp_path / "now")
    assert resume(tmp_path / "now" / "checkpoint-3", tmp_path / "now").tasks == ("old",)


def test_the_memory_of_another_run_is_never_taken(checkpoint: Path, tmp_path: Path) -> None:
    model = tiny_gpt2()
    other = EWC(model, strength=0.01)
    other.anchor(1.0, task="of another run")
    save = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    make_trainer(model, tmp_path / "now", EWCCallback(other), **save).train()
    assert resume(checkpoint, tmp_path / "now").tasks == ("old",)


def test_a_lost_memory_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / FILE_NAME).unlink()
    with pytest.raises(RuntimeError, match=r"of step 3 had a memory, but .* has no task"):
        resume(checkpoint, tmp_path / "now")


def test_a_memory_that_was_given_for_a_lost_one_is_told(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / FILE_NAME).unlink()
    with pytest.warns(EWCWarning, match=r"as it was given, with the tasks \['old'\]"):
        resume(checkpoint, tmp_path / "now", memory_of(tiny_gpt2()))


def test_a_checkpoint_without_a_memory_is_an_error(tmp_path: Path) -> None:
    save = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    make_trainer(tiny_gpt2(), tmp_path, **save).train()
    with pytest.raises(RuntimeError, match="named 'ewc', and the memory given has no task"):
        resume(tmp_path / "checkpoint-3", tmp_path)


def test_a_damaged_file_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    file = checkpoint / FILE_NAME
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        resume(checkpoint, tmp_path / "now")


def padded(rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A collator: the last position of each second row is padding."""
    tokens = torch.stack([row["input_ids"] for row in rows])
    mask = torch.ones_like(tokens)
    mask[1::2, -1] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.where(mask > 0, -100)}


def test_it_consolidates_on_the_trainers_batches(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory = memory_of(model)
    callback = EWCCallback(memory, consolidate={"task": "new", "kind": "empirical"})
    trainer = make_trainer(model, tmp_path, callback)
    trainer.data_collator = padded
    trainer.train()
    other = tiny_gpt2()
    by_hand = EWC(other, strength=1.0)
    by_hand.load_state_dict(memory_of(other).state_dict())
    other.load_state_dict(model.state_dict())
    batches = [padded(ROWS[n : n + 2]) for n in range(0, len(ROWS), 2)]
    by_hand.consolidate(batches, task="new", kind="empirical")
    assert memory.tasks == ("old", "new")
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(memory.state_dict()[name], value)


def test_it_does_not_consolidate_unless_asked(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory = memory_of(model)
    make_trainer(model, tmp_path, EWCCallback(memory)).train()
    assert memory.tasks == ("old",)


def test_the_memory_is_detached_after_training(tmp_path: Path) -> None:
    model = tiny_gpt2()
    trainer = make_trainer(model, tmp_path, EWCCallback(memory_of(model)))
    trainer.train()
    optimizer = trainer.optimizer.optimizer
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_training_again_pulls_once_per_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls: list[int] = []
    start_pull = EWC._start_pull
    monkeypatch.setattr(EWC, "_start_pull", lambda self: (pulls.append(1), start_pull(self))[1])
    model = tiny_gpt2()
    steps = CountPulls()
    trainer = make_trainer(model, tmp_path, EWCCallback(memory_of(model)), steps)
    trainer.train()
    trainer.train()
    assert len(pulls) == steps.steps == 2 * STEPS


def test_a_task_that_is_there_already_is_refused_before_training(tmp_path: Path) -> None:
    model = tiny_gpt2()
    callback = EWCCallback(memory_of(model), consolidate={"task": "old"})
    before = model.lm_head.weight.detach().clone()
    with pytest.raises(ValueError, match="already has a task 'old'"):
        make_trainer(model, tmp_path, callback).train()
    assert torch.equal(model.lm_head.weight, before)


def test_a_memory_of_another_model_is_refused(tmp_path: Path) -> None:
    callback = EWCCallback(memory_of(tiny_gpt2()))
    with pytest.raises(ValueError, match="expected the memory of the model that is trained"):
        make_trainer(tiny_gpt2(), tmp_path, callback).train()


def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'ewc\[transformers\]'"):
        runpy.run_path(str(ewc.integrations.transformers.__file__))
