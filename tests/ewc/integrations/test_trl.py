"""TRL's trainers with the callback of Transformers: a plain loop's weights, and what is refused."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from support.trainers import (
    ACCUMULATED,
    BATCH,
    CLIP,
    EPSILON,
    NEW,
    OLD,
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
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Trainer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import ewc
from ewc import EWC, EWCWarning
from ewc.integrations.peft import LoraEWC
from ewc.integrations.transformers import EWCCallback

WORDS = WordLevel({f"word{n}": n for n in range(32)}, unk_token="word0")
SPLIT = Tokenizer(WORDS)
SPLIT.pre_tokenizer = WhitespaceSplit()
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=SPLIT, pad_token="word0", eos_token="word1")
TEXT = Dataset.from_dict({"input_ids": NEW.tolist()})


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
    "bf16": False,
    "report_to": [],
    "disable_tqdm": True,
}


def make_trainer(
    model: nn.Module,
    directory: Path,
    *callbacks: EWCCallback,
    peft_config: LoraConfig | None = None,
    **changed: Any,
) -> SFTTrainer:
    args = SFTConfig(output_dir=str(directory), **(SETTINGS | changed))
    return SFTTrainer(
        model,
        args,
        train_dataset=TEXT,
        processing_class=TOKENIZER,
        callbacks=list(callbacks),
        peft_config=peft_config,
    )


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_the_weights_are_those_of_a_plain_loop(curvature: Any, tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory = memory_of(model, curvature)
    callback = EWCCallback(memory, consolidate={"task": "new", "kind": "sampled"})
    make_trainer(model, tmp_path, callback).train()
    assert distance(model, plain_loop(with_memory(curvature=curvature))) < 1e-5
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


PAIRS = Dataset.from_list(
    [
        {
            "prompt": "word2 word3 ",
            "chosen": f"word{20 + n} word5 ",
            "rejected": "word6 word7 word8 ",
        }
        for n in range(8)
    ]
)


def dpo_trainer(
    model: nn.Module, directory: Path, *callbacks: EWCCallback, pairs: Dataset = PAIRS
) -> DPOTrainer:
    return DPOTrainer(
        model,
        ref_model=tiny_gpt2(),
        args=DPOConfig(
            output_dir=str(directory),
            **(SETTINGS | {"per_device_train_batch_size": 4, "max_steps": 1}),
        ),
        train_dataset=pairs,
        processing_class=TOKENIZER,
        callbacks=list(callbacks),
    )


def chosen_alone() -> list[dict[str, Tensor]]:
    """The prompts with their chosen answers, of which the answers alone have labels."""
    rows = []
    for row in PAIRS:
        prompt, answer = (TOKENIZER(row[key])["input_ids"] for key in ("prompt", "chosen"))
        answer = [*answer, TOKENIZER.eos_token_id]
        tokens, labels = prompt + answer, [-100] * len(prompt) + answer
        rows.append({"input_ids": torch.tensor([tokens]), "labels": torch.tensor([labels])})
    return rows


def test_of_pairs_of_answers_the_chosen_ones_count(tmp_path: Path) -> None:
    model = tiny_gpt2().double()
    loader = dpo_trainer(model, tmp_path).get_train_dataloader()
    fisher = ewc.fisher_diagonal(model, loader, kind="empirical")
    slow = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    positions = 0
    for row in chosen_alone():
        count = int((row["labels"] >= 0).sum())
        positions += count
        gradients = torch.autograd.grad(model(**row).loss * count, list(model.parameters()))
        for name, gradient in zip(slow, gradients, strict=True):
            slow[name] += gradient.square()
    assert positions == 3 * len(PAIRS)
    for name, value in slow.items():
        torch.testing.assert_close(fisher[name], value / positions)


def test_rejected_answers_do_not_change_a_sampled_fisher(tmp_path: Path) -> None:
    model = tiny_gpt2()
    others = PAIRS.map(lambda row: {"rejected": "word9 word8 word9 "})
    fishers = [
        ewc.fisher_diagonal(
            model,
            dpo_trainer(model, tmp_path, pairs=pairs).get_train_dataloader(),
            kind="sampled",
            generator=torch.Generator().manual_seed(0),
        )
        for pairs in (PAIRS, others)
    ]
    assert all(torch.equal(value, fishers[1][name]) for name, value in fishers[0].items())


def test_a_completion_mask_is_honoured_and_is_no_input() -> None:
    model = tiny_gpt2()
    answer = torch.zeros_like(OLD)
    answer[:, 5:] = 1
    options: dict[str, Any] = {"kind": "empirical"}
    labels = OLD.masked_fill(answer == 0, -100)
    expected = ewc.fisher_diagonal(model, [{"input_ids": OLD, "labels": labels}], **options)
    for batch in (
        {"input_ids": OLD, "completion_mask": answer},
        {"input_ids": OLD, "labels": OLD, "completion_mask": answer},
    ):
        fisher = ewc.fisher_diagonal(model, [batch], **options)
        for name, value in expected.items():
            torch.testing.assert_close(fisher[name], value)
    batch = {"input_ids": OLD, "completion_mask": answer[:, 1:]}
    with pytest.raises(ValueError, match=r"completion_mask of batch 0 has shape \(16, 7\)"):
        ewc.fisher_diagonal(model, [batch], **options)


def test_pairs_of_answers_without_their_loader_are_told(tmp_path: Path) -> None:
    model = tiny_gpt2()
    batches = list(dpo_trainer(model, tmp_path).get_train_dataloader())
    with pytest.warns(EWCWarning, match="two halves of a batch have the same prompts"):
        ewc.fisher_diagonal(model, batches, kind="empirical")


def test_dpo_consolidates_the_chosen_answers_at_the_end(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory = memory_of(model)
    options = {"task": "dpo", "kind": "empirical"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", EWCWarning)
        dpo_trainer(model, tmp_path, EWCCallback(memory, consolidate=options)).train()
    by_hand = EWC(model, strength=1.0)
    by_hand.load_state_dict(memory_of(tiny_gpt2()).state_dict())
    by_hand.consolidate(chosen_alone(), **options)
    assert memory.tasks == ("old", "dpo")
    found, expected = memory.state_dict(), by_hand.state_dict()
    assert found.keys() == expected.keys()
    for name in expected.keys() - {"values"}:  # of which the last digits differ
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-8)


def refused_before_training(trainer: Trainer, model: nn.Module, memory: EWC, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        trainer.train()
    assert distance(model, tiny_gpt2()) == 0
    assert trainer.state.global_step == 0
    assert memory.tasks == ("old",)


def test_grpo_with_consolidate_is_refused_before_the_first_step(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory = memory_of(model)
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            num_generations=2,
            max_completion_length=3,
            **(SETTINGS | {"max_steps": 1}),
        ),
        train_dataset=Dataset.from_dict({"prompt": ["word2 word3"] * 8}),
        processing_class=TOKENIZER,
        callbacks=[EWCCallback(memory, consolidate=True)],
    )
    expected = r"would fail at the end .* a list of \d+ samples that no collator has joined"
    refused_before_training(trainer, model, memory, expected)


def test_packing_with_consolidate_is_refused_before_the_first_step(tmp_path: Path) -> None:
    model = tiny_gpt2()
    memory = memory_of(model)
    packed = {"packing": True, "max_length": 16, "max_steps": 1, "padding_free": True}
    trainer = make_trainer(model, tmp_path, EWCCallback(memory, consolidate=True), **packed)
    refused_before_training(trainer, model, memory, r"not a single step .* batch 0 is packed")


LORA = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0)


def test_a_peft_config_with_a_memory_of_the_base_is_refused_with_what_works(tmp_path: Path) -> None:
    model = tiny_gpt2()
    callback = EWCCallback(memory_of(model))
    trainer = make_trainer(model, tmp_path, callback, peft_config=LORA)
    with pytest.raises(ValueError, match=r"PEFT has wrapped .* get_peft_model first .*LoraEWC"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_what_works_with_a_peft_config_in_the_words_of_that_error(tmp_path: Path) -> None:
    model = get_peft_model(tiny_gpt2(), LORA)
    memory = LoraEWC(model, strength=1e6)
    memory.consolidate([{"input_ids": OLD, "labels": OLD}], task="old", kind="empirical")
    make_trainer(model, tmp_path, EWCCallback(memory)).train()  # pulls as the memory does

    free = get_peft_model(tiny_gpt2(), LORA)
    make_trainer(free, tmp_path).train()
    assert memory.estimated_rise() < 0.5 * rise_of(memory, free)


@pytest.mark.parametrize("peft_config", [None, LORA])
def test_a_directory_where_the_trainer_makes_the_model_itself(
    tmp_path: Path, peft_config: LoraConfig | None
) -> None:
    model = tiny_gpt2()
    memory_of(model).save_pretrained(tmp_path / "memory")
    model.save_pretrained(tmp_path / "model")
    rises = []
    for strength in (0.0, 1e6):
        callback = EWCCallback(tmp_path / "memory", strength=strength)
        name: Any = str(tmp_path / "model")
        trainer = make_trainer(name, tmp_path, callback, peft_config=peft_config)
        trainer.train()
        assert isinstance(callback.memory, LoraEWC) == (peft_config is not None)
        rises.append(callback.memory.estimated_rise())
    assert 0 < rises[1] < 0.5 * rises[0]


def rise_of(memory: LoraEWC, other: nn.Module) -> float:
    """The rise that the memory would estimate for the weights of another model."""
    model = memory._parameters.model
    kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(other.state_dict())
    rise = memory.estimated_rise()
    model.load_state_dict(kept)
    return rise
