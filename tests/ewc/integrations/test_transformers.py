"""The callback for the Trainer of Transformers: pulls, checkpoints, several memories by name."""

import json
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
    OLD,
    RATE,
    ROWS,
    STEPS,
    distance,
    gpt2_with_lora,
    memory_of,
    plain_loop,
    tiny_gpt2,
    two_memories,
    with_memory,
)
from torch import nn
from transformers import (
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import ewc
import ewc.integrations.transformers
from ewc import EWC, EWCWarning
from ewc.integrations.peft import LoraEWC
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


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
@pytest.mark.parametrize("how", ["proximal", "gradient"])
def test_the_weights_are_those_of_a_plain_loop(how: Any, curvature: Any, tmp_path: Path) -> None:
    model = tiny_gpt2()
    make_trainer(model, tmp_path, EWCCallback(memory_of(model, curvature), how=how)).train()
    assert distance(model, plain_loop(with_memory(how, curvature))) < 1e-5
    assert distance(model, plain_loop(lambda *_: None)) > 1e-3  # the pull mattered


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    ],
    ids=lambda settings: next(iter(settings)),
)
@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_the_same_with(settings: dict[str, Any], curvature: Any, tmp_path: Path) -> None:
    model = tiny_gpt2()
    make_trainer(model, tmp_path, EWCCallback(memory_of(model, curvature)), **settings).train()
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled="bf16" in settings)
    reference = plain_loop(with_memory(curvature=curvature), context=autocast)
    assert distance(model, reference) < 1e-5


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_an_interrupted_run_ends_where_the_uninterrupted_one_does(
    curvature: Any, tmp_path: Path
) -> None:
    save = {"save_strategy": "steps", "save_steps": 3}
    whole = tiny_gpt2(dropout=0.1)
    memory = memory_of(whole, curvature)
    make_trainer(whole, tmp_path / "whole", EWCCallback(memory), **save).train()

    first = tiny_gpt2(dropout=0.1)
    stopped = [EWCCallback(memory_of(first, curvature)), StopAt(3)]
    make_trainer(first, tmp_path / "parts", *stopped, **save).train()
    assert distance(first, whole) > 1e-3

    second = tiny_gpt2(dropout=0.1)
    nn.init.zeros_(second.lm_head.weight)
    memory = EWC(second, strength=1.0, curvature=curvature)
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


@pytest.mark.parametrize("workers", [0, 1])
def test_the_trial_of_a_batch_changes_nothing_about_the_training(
    workers: int, tmp_path: Path
) -> None:
    found = []
    shuffled = {"train_sampling_strategy": "random", "dataloader_num_workers": workers}
    for options in (False, {"kind": "sampled", "generator": torch.Generator().manual_seed(5)}):
        model = tiny_gpt2(dropout=0.1)
        callback = EWCCallback(memory_of(model), consolidate=options)
        make_trainer(model, tmp_path, callback, num_train_epochs=2, **shuffled).train()
        found.append(model)
    assert distance(*found) == 0
    assert distance(found[0], tiny_gpt2()) > 1e-3


def test_a_generator_is_the_same_for_a_trial_and_without_one(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory, generator = memory_of(model), torch.Generator().manual_seed(5)
    options = {"task": "new", "kind": "sampled", "generator": generator}
    make_trainer(model, tmp_path, EWCCallback(memory, consolidate=options), max_steps=1).train()
    loader = make_trainer(model, tmp_path).get_train_dataloader()
    again = torch.Generator().manual_seed(5)
    fisher = ewc.fisher_diagonal(model, loader, kind="sampled", generator=again)
    assert torch.equal(generator.get_state(), again.get_state())
    assert fisher.keys() == dict(model.named_parameters()).keys()


def broken(rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A collator whose batches can be trained on, but have no Fisher: they seem to be packed."""
    tokens = torch.stack([row["input_ids"] for row in rows])
    positions = (torch.arange(tokens.shape[1]) % 4).expand_as(tokens)
    return {"input_ids": tokens, "labels": tokens, "position_ids": positions}


class Ended(TrainerCallback):
    """Notes that the end of training was reached."""

    reached = False

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.reached = True


def test_batches_that_have_no_fisher_are_refused_before_the_first_step(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory = memory_of(model)
    trainer = make_trainer(model, tmp_path, EWCCallback(memory, consolidate=True))
    trainer.data_collator = broken
    with pytest.raises(
        ValueError, match=r"consolidate= would fail .* batch 0 is packed.* leave out"
    ):
        trainer.train()
    assert distance(model, tiny_gpt2()) == 0
    assert not trainer.optimizer.optimizer._optimizer_step_post_hooks
    assert memory.tasks == ("old",)
    trainer.data_collator = padded
    trainer.train()  # nothing is left of the first attempt
    assert memory.tasks == ("old", "task 2")


class BreaksLater:
    """A collator whose batches have no Fisher any more after some calls."""

    calls = 0

    def __call__(self, rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, Any]:
        self.calls += 1
        return padded(rows) if self.calls <= STEPS * ACCUMULATED else broken(rows)


def test_what_fails_at_the_end_keeps_the_weights_and_says_how_to_go_on(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory, ended = memory_of(model), Ended()
    callback = EWCCallback(memory, consolidate={"task": "new", "max_samples": 9})
    trainer = make_trainer(model, tmp_path, callback, ended)
    trainer.data_collator = BreaksLater()
    call = r"memory\.consolidate\(batches, task='new', max_samples=9, kind='sampled'\)"
    with pytest.warns(EWCWarning, match=rf"training is done .* packed.* tasks \['old'\].*{call}"):
        trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "model.safetensors").is_file()
    assert ended.reached
    assert memory.tasks == ("old",)
    memory.consolidate([padded(ROWS)], task="new", max_samples=9, kind="sampled")


def test_true_is_a_sampled_fisher_for_language_models(tmp_path: Path) -> None:
    config = tiny_gpt2().config
    config.vocab_size = 1200  # exact is refused above 1,000 outputs
    model = GPT2LMHeadModel(config)
    callback = EWCCallback(EWC(model), consolidate=True)
    make_trainer(model, tmp_path, callback, max_steps=1).train()
    assert callback.memory.tasks == ("task 1",)
    assert callback._inside._options["kind"] == "sampled"


def test_a_resumed_run_is_consolidated_without_a_trial(checkpoint: Path, tmp_path: Path) -> None:
    memory = EWC(tiny_gpt2())
    callback = EWCCallback(memory, consolidate={"task": "new"})
    trainer = make_trainer(memory._parameters.model, tmp_path, callback)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert memory.tasks == ("old", "new")


def test_adafactor_of_transformers_is_pulled_through_the_gradient(tmp_path: Path) -> None:
    moved = []
    for strength in (0.0, 1000.0):
        model = tiny_gpt2()
        memory = memory_of(model)
        memory.strength = strength
        callback = EWCCallback(memory, how="gradient")
        make_trainer(model, tmp_path, callback, optim="adafactor").train()
        moved.append(memory.estimated_rise())
    assert moved[1] < 0.7 * moved[0]
    callback = EWCCallback(memory_of(model))
    with pytest.raises(ValueError, match="how='gradient'"):
        make_trainer(model, tmp_path, callback, optim="adafactor").train()


def test_deepspeed_is_refused_with_the_trainer(tmp_path: Path) -> None:
    model = tiny_gpt2()
    args = TrainingArguments(output_dir=str(tmp_path), **SETTINGS)
    args.deepspeed_plugin = object()  # as with TrainingArguments(deepspeed=...)
    with pytest.raises(TypeError, match=r"DeepSpeed \(ZeRO\) .* DistributedDataParallel"):
        EWCCallback(memory_of(model)).on_init_end(args, TrainerState(), TrainerControl())


def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'ewc\[transformers\]'"):
        runpy.run_path(str(ewc.integrations.transformers.__file__))


HALF = STEPS // 2
SAVED = {"gradient_accumulation_steps": 1, "save_strategy": "steps", "save_steps": HALF}


def named(old: EWC, even: EWC) -> tuple[EWCCallback, EWCCallback]:
    return EWCCallback(old), EWCCallback(even, name="even")


def attached(trainer: Trainer) -> bool:
    """Whether anything is attached to the optimizer, if there is one."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    return optimizer is not None and bool(optimizer._optimizer_step_post_hooks)


def test_two_memories_are_resumed_each_as_it_was(tmp_path: Path) -> None:
    whole = tiny_gpt2(dropout=0.1)
    make_trainer(whole, tmp_path, *named(*two_memories(whole)), **SAVED).train()

    resumed = tiny_gpt2(dropout=0.1)
    nn.init.zeros_(resumed.lm_head.weight)
    old, even = EWC(resumed, strength=1.0), EWC(resumed, strength=1.0)
    trainer = make_trainer(resumed, tmp_path, *named(old, even), **SAVED)
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{HALF}"))
    assert distance(resumed, whole) == 0
    assert (old.tasks, old.strength) == (("old",), 1000.0)
    assert (even.tasks, even.strength) == (("even",), 7.0)

    without = tiny_gpt2(dropout=0.1)
    make_trainer(without, tmp_path / "without", EWCCallback(memory_of(without)), **SAVED).train()
    assert distance(without, whole) > 1e-3  # the second one mattered


def test_the_default_name_is_that_of_older_checkpoints(tmp_path: Path) -> None:
    model = tiny_gpt2()
    make_trainer(model, tmp_path, *named(*two_memories(model)), **SAVED).train()
    checkpoint = tmp_path / f"checkpoint-{HALF}"
    files = {file.name for file in checkpoint.glob("ewc*")}
    assert files == {"ewc_memory.safetensors", "ewc_memory_even.safetensors"}
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert {"ewc", "ewc_even"} <= state["stateful_callbacks"].keys()


def test_a_memory_that_was_not_there_before_is_told(tmp_path: Path) -> None:
    model = tiny_gpt2()
    make_trainer(model, tmp_path, EWCCallback(memory_of(model)), **SAVED).train()
    checkpoint = str(tmp_path / f"checkpoint-{HALF}")
    trainer = make_trainer(model, tmp_path, *named(*two_memories(model)), **SAVED)
    with pytest.warns(EWCWarning, match=r"without a memory named 'even': .* tasks \['even'\]"):
        trainer.train(resume_from_checkpoint=checkpoint)


@pytest.mark.parametrize("name", ["ewc", "even"])
def test_the_same_name_twice_is_refused(name: str, tmp_path: Path) -> None:
    model = tiny_gpt2()
    both = [EWCCallback(memory, name=name) for memory in two_memories(model)]
    with pytest.raises(ValueError, match=f"a name of its own for each .* got '{name}' twice"):
        make_trainer(model, tmp_path, *both, **SAVED)


def test_a_callback_with_the_same_name_that_is_added_later(tmp_path: Path) -> None:
    model = tiny_gpt2()
    trainer = make_trainer(model, tmp_path, *named(*two_memories(model)), **SAVED)
    extra = EWCCallback(EWC(model, strength=1.0))
    trainer.add_callback(extra)
    with pytest.raises(ValueError, match="expected a name of its own for each memory"):
        trainer.train()
    assert not attached(trainer)
    assert distance(model, tiny_gpt2()) == 0
    trainer.remove_callback(extra)
    trainer.train()
    trainer.train()  # its own name is no other's


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A memory of the old text at the weights of the base model, with Kronecker factors."""
    memory = EWC(tiny_gpt2(), strength=1000.0, curvature="kronecker")
    memory.consolidate([{"input_ids": OLD, "labels": OLD}], task="old", kind="empirical")
    memory.save_pretrained(tmp_path / "memory")
    return tmp_path / "memory"


def test_a_directory_is_loaded_when_training_begins(directory: Path, tmp_path: Path) -> None:
    expected = tiny_gpt2()
    memory = EWC.from_pretrained(directory, expected)
    make_trainer(expected, tmp_path, EWCCallback(memory)).train()
    callback = EWCCallback(directory)
    with pytest.raises(RuntimeError, match="is loaded when training begins: not yet"):
        _ = callback.memory
    model = tiny_gpt2()
    trainer = make_trainer(model, tmp_path, callback)
    trainer.train()
    assert distance(model, expected) == 0
    assert distance(model, plain_loop(lambda *_: None)) > 1e-3  # the pull mattered
    loaded = callback.memory
    trainer.train()  # the weights have moved, and the memory stays
    assert callback.memory is loaded
    chosen = EWCCallback(str(directory), strength=7.0)
    make_trainer(tiny_gpt2(), tmp_path, chosen, max_steps=1).train()
    assert chosen.memory.strength == 7.0


def test_a_directory_of_another_model_is_refused_before_the_first_step(
    directory: Path, tmp_path: Path
) -> None:
    model = tiny_gpt2()
    with torch.no_grad():
        model.transformer.wpe.weight[0, 0] += 1
    trainer = make_trainer(model, tmp_path, EWCCallback(directory))
    with pytest.raises(ValueError, match=r"and this model is .* with other weights"):
        trainer.train()
    assert trainer.state.global_step == 0
    with pytest.raises(FileNotFoundError, match="there is no"):
        EWCCallback(tmp_path / "nothing")
    with pytest.raises(ValueError, match="are for a directory"):
        EWCCallback(memory_of(model), budget=0.1)


def test_a_run_with_a_directory_is_resumed(directory: Path, tmp_path: Path) -> None:
    save = {"save_strategy": "steps", "save_steps": 3}
    whole = tiny_gpt2()
    make_trainer(whole, tmp_path, EWCCallback(directory, strength=30.0), **save).train()
    second = tiny_gpt2()
    nn.init.zeros_(second.lm_head.weight)
    callback = EWCCallback(directory)
    trainer = make_trainer(second, tmp_path, callback, **save)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert distance(second, whole) == 0
    assert callback.memory.strength == 30.0


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_the_log_has_the_strength_and_the_rise(curvature: Any, tmp_path: Path) -> None:
    class After(TrainerCallback):
        """What a callback is told that comes later, such as one of TensorBoard."""

        def __init__(self) -> None:
            self.logs: list[dict[str, float]] = []

        def on_log(self, *args: Any, logs: dict[str, float], **kwargs: Any) -> None:
            self.logs.append(dict(logs))

    class Measured(After):
        """The memory after each step, before anything is logged."""

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            names = ("strength", "estimated_rise", "allowed_rise")
            values = (memory.strength, memory.estimated_rise(), memory.allowed_rise())
            self.logs.append(dict(zip((f"ewc_{name}" for name in names), values, strict=True)))

        def on_log(self, *args: Any, **kwargs: Any) -> None:
            pass

    model = tiny_gpt2()
    memory = EWC(model, curvature=curvature, budget=0.001)
    memory.consolidate([{"input_ids": OLD, "labels": OLD}], task="old", kind="empirical")
    measured, after = Measured(), After()
    fixed = EWC(model, strength=2.0)
    fixed.anchor(1.0)
    callbacks = [measured, EWCCallback(memory), EWCCallback(fixed, name="l2"), after]
    trainer = make_trainer(model, tmp_path, *callbacks, logging_steps=1)
    trainer.train()
    history = [row for row in trainer.state.log_history if "loss" in row]
    assert len(history) == STEPS
    for row, told, expected in zip(history, after.logs, measured.logs, strict=False):
        assert expected.items() <= row.items()
        assert expected.items() <= told.items()
        assert row["ewc_l2_strength"] == 2.0
        assert row["ewc_l2_estimated_rise"] > 0
        assert "ewc_l2_allowed_rise" not in row  # it is infinite
    assert history[-1]["ewc_estimated_rise"] > 0
    assert not any("ewc_strength" in row for row in trainer.state.log_history[STEPS:])


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_a_directory_and_a_model_with_adapters(curvature: Any, tmp_path: Path) -> None:
    memory = EWC(tiny_gpt2(), strength=1e6, curvature=curvature)
    memory.consolidate([{"input_ids": OLD, "labels": OLD}], task="old", kind="empirical")
    memory.save_pretrained(tmp_path / "memory")
    rises = []
    for strength in (0.0, 1e6):
        model = gpt2_with_lora(start=True).float()
        callback = EWCCallback(tmp_path / "memory", strength=strength)
        make_trainer(model, tmp_path, callback).train()
        assert isinstance(callback.memory, LoraEWC)
        rises.append(callback.memory.estimated_rise())
    assert 0 < rises[1] < 0.5 * rises[0]
    callback.memory.save_pretrained(tmp_path / "adapted")
    with pytest.raises(ValueError, match="with other weights"):  # those of the base model
        LoraEWC.from_pretrained(tmp_path / "adapted", model)
