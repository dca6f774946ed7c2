"""TRL's `SFTTrainer` with the callback of Transformers: the weights of a plain loop."""

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from support.trainers import (
    ACCUMULATED,
    BATCH,
    CLIP,
    EPSILON,
    NEW,
    RATE,
    STEPS,
    distance,
    memory_of,
    plain_loop,
    tiny_gpt2,
    with_memory,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from ewc import EWC
from ewc.integrations.transformers import EWCCallback

WORDS = WordLevel({f"word{n}": n for n in range(32)}, unk_token="word0")
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WORDS), pad_token="word0", eos_token="word1"
)
TEXT = Dataset.from_dict({"input_ids": NEW.tolist()})


def make_trainer(
    model: nn.Module, directory: Path, *callbacks: EWCCallback, **changed: Any
) -> SFTTrainer:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATED,
        "max_steps": STEPS,
        "max_grad_norm": CLIP,
        "learning_rate": RATE,
        "adam_epsilon": EPSILON,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
    }
    args = SFTConfig(output_dir=str(directory), **(settings | changed))
    return SFTTrainer(
        model, args, train_dataset=TEXT, processing_class=TOKENIZER, callbacks=list(callbacks)
    )


def test_the_weights_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory = memory_of(model)
    callback = EWCCallback(memory, consolidate={"task": "new", "kind": "sampled"})
    make_trainer(model, tmp_path, callback).train()
    assert distance(model, plain_loop(with_memory())) < 1e-5
    assert distance(model, plain_loop(lambda *_: None)) > 1e-3  # the pull mattered
    assert memory.tasks == ("old", "new")


def test_an_interrupted_run_ends_where_the_uninterrupted_one_does(tmp_path: Path) -> None:
    save = {"save_strategy": "steps", "save_steps": 3}
    whole = tiny_gpt2()
    make_trainer(whole, tmp_path, EWCCallback(memory_of(whole)), **save).train()
    resumed = tiny_gpt2()
    nn.init.zeros_(resumed.lm_head.weight)
    memory = EWC(resumed, strength=1.0)
    trainer = make_trainer(resumed, tmp_path, EWCCallback(memory), **save)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert distance(resumed, whole) == 0
    assert memory.tasks == ("old",)


def test_text_in_blocks_is_consolidated(tmp_path: Path) -> None:
    model = tiny_gpt2()
    packed = {"packing": True, "packing_strategy": "wrapped", "max_length": 16, "max_steps": 2}
    memory = memory_of(model)
    callback = EWCCallback(memory, consolidate={"task": "new", "kind": "empirical"})
    make_trainer(model, tmp_path, callback, **packed).train()
    assert memory.tasks == ("old", "new")


def test_packed_text_is_trained_but_not_consolidated(tmp_path: Path) -> None:
    model = tiny_gpt2()
    packed = {"packing": True, "max_length": 16, "max_steps": 1, "padding_free": True}
    trainer = make_trainer(model, tmp_path, EWCCallback(memory_of(model)), **packed)
    trainer.train()
    with pytest.raises(ValueError, match=r"batch 0 is packed: .*a loader without packing"):
        memory_of(model).consolidate(trainer.get_train_dataloader(), kind="empirical")
