"""LoRA adapters of PEFT: the memory holds them alone, and base weights cost nothing."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.trainers import NEW, OLD, ROWS, distance, tiny_gpt2
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import ewc
from ewc import EWC
from ewc.integrations.transformers import EWCCallback


def with_adapter(name: str = "default") -> nn.Module:
    """The tiny GPT-2 with an adapter whose two factors are both random."""
    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0)
    model = get_peft_model(tiny_gpt2(), config, adapter_name=name)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in adapters(model).values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def adapters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if "lora_" in name}


def memory_of(model: nn.Module) -> EWC:
    memory = EWC(model, strength=100.0)
    memory.consolidate([{"input_ids": OLD, "labels": OLD}], task="old", kind="empirical")
    return memory


def test_the_memory_holds_the_adapters_alone() -> None:
    model = with_adapter()
    tensors = [value for key, value in memory_of(model).state_dict().items() if key != "values"]
    assert sum(tensor.numel() for tensor in tensors) == 2 * sum(
        p.numel() for p in adapters(model).values()
    )
    assert all(p.grad is None for p in model.parameters())


def test_the_fisher_is_that_of_single_samples() -> None:
    model = with_adapter().double()
    options = {"kind": "empirical", "positions": "sum"}
    fisher = ewc.fisher_diagonal(model, [{"input_ids": OLD, "labels": OLD}], **options)
    expected = {name: torch.zeros_like(p) for name, p in adapters(model).items()}
    for row in OLD.split(1):
        loss = model(input_ids=row, labels=row).loss * (row.shape[1] - 1)
        for total, grad in zip(
            expected.values(),
            torch.autograd.grad(loss, list(adapters(model).values())),
            strict=True,
        ):
            total += grad.square() / len(OLD)
    assert fisher.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(fisher[name], expected[name])


def train(model: nn.Module, memory: EWC, directory: Path, resume: str | None = None) -> None:
    args = TrainingArguments(
        **{"output_dir": str(directory), "max_steps": 6, "per_device_train_batch_size": 4},
        **{"learning_rate": 1e-2, "save_steps": 3, "use_cpu": True, "report_to": []},
        disable_tqdm=True,
    )
    trainer = Trainer(model, args, train_dataset=ROWS, callbacks=[EWCCallback(memory)])
    trainer.train(resume_from_checkpoint=resume)


def test_adapters_are_pulled_and_resumed_in_a_trainer(tmp_path: Path) -> None:
    model, free, resumed = with_adapter(), with_adapter(), with_adapter()
    base = tiny_gpt2().state_dict()
    train(model, memory_of(model), tmp_path)
    train(free, EWC(free, strength=0.0), tmp_path / "free")
    train(resumed, EWC(resumed, strength=1.0), tmp_path, str(tmp_path / "checkpoint-3"))
    assert distance(model, free) > 1e-3
    assert distance(model, resumed) == 0
    kept: Tensor = model.base_model.model.transformer.wte.weight
    assert torch.equal(kept, base["transformer.wte.weight"])


def test_an_adapter_with_another_name_takes_the_memory(tmp_path: Path) -> None:
    model, other = with_adapter(), with_adapter("sales")
    memory = memory_of(model)
    memory.save(tmp_path / "adapter.safetensors")
    with pytest.raises(ValueError, match="If it has another name there, use rename="):
        EWC.load(tmp_path / "adapter.safetensors", other)
    loaded = EWC.load(
        tmp_path / "adapter.safetensors",
        other,
        rename=lambda name: name.replace(".default.", ".sales."),
    )
    for one in (model, other):
        with torch.no_grad():
            for parameter in adapters(one).values():
                parameter += 0.1
    assert loaded.penalty().item() == pytest.approx(memory.penalty().item(), rel=1e-6)
    assert memory.penalty().item() > 0


def test_only_the_active_adapter_is_remembered() -> None:
    model = with_adapter()
    model.add_adapter("second", model.peft_config["default"])
    model.set_adapter("second")
    batches = [{"input_ids": NEW, "labels": NEW}]
    with pytest.warns(ewc.EWCWarning, match=r"zero for all of .*lora_A\.second"):  # B is zero
        fisher = EWC(model, strength=1.0).consolidate(batches, kind="empirical")
    assert all(".second." in name for name in fisher)
