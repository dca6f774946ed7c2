"""Every row of the tables in docs/compatibility.md is run."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lion_pytorch
import pytest
import schedulefree
import torch
import transformers
from support.trainers import tiny_gpt2
from torch import Tensor, nn
from torch.optim import Optimizer

import ewc

ROOT = Path(__file__).parents[2]


def rows(section: str) -> dict[str, list[str]]:
    """The rows of the table of a section, by their first cell."""
    text = (ROOT / "docs/compatibility.md").read_text().split(f"## {section}\n")[1]
    lines = re.findall(r"^\| (.+) \|$", text.split("\n## ")[0], re.MULTILINE)
    cells = [line.split(" | ") for line in lines[2:]]
    return {first: rest for first, *rest in cells}


Batch = Any
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = {"vocab_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}


def text(length: int = 8) -> dict[str, Tensor]:
    tokens = torch.randint(2, 32, (5, length))
    return {"input_ids": tokens, "labels": tokens}


def llama() -> tuple[nn.Module, Batch]:
    config = transformers.LlamaConfig(
        **SMALL, **TOKENS, intermediate_size=24, num_key_value_heads=2
    )
    return transformers.LlamaForCausalLM(config), text()


def mixtral() -> tuple[nn.Module, Batch]:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    config = transformers.MixtralConfig(**SMALL, **TOKENS, **experts, intermediate_size=24)
    model = transformers.MixtralForCausalLM(config)
    model.set_experts_implementation("eager")  # the default cannot do float64, see below
    return model, text()


def bert() -> tuple[nn.Module, Batch]:
    config = transformers.BertConfig(**SMALL, **TOKENS, intermediate_size=24, num_labels=3)
    labels = {"labels": torch.randint(3, (5,))}
    return transformers.BertForSequenceClassification(config), text() | labels


def t5() -> tuple[nn.Module, Batch]:
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(
        **sizes, vocab_size=32, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), text() | {"labels": text(6)["labels"]}


def vit() -> tuple[nn.Module, Batch]:
    config = transformers.ViTConfig(
        **SMALL, intermediate_size=24, image_size=8, patch_size=4, num_labels=3
    )
    images = {"pixel_values": torch.randn(5, 3, 8, 8), "labels": torch.randint(3, (5,))}
    return transformers.ViTForImageClassification(config), images


def convolutional() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3)),
        *(nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )
    model(2 * torch.randn(30, 3, 8, 8) + 1)  # statistics of its own
    return model, (torch.randn(5, 3, 8, 8), torch.randint(3, (5,)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, num_layers=2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


ARCHITECTURES: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "GPT-2 (tied embeddings)": lambda: (tiny_gpt2(), text()),
    "Llama (grouped queries)": llama,
    "Mixtral (mixture of experts)": mixtral,
    "BERT": bert,
    "T5 (encoder and decoder)": t5,
    "ViT": vit,
    "convolutional network with batch norm": convolutional,
    "LSTM": lambda: (Recurrent(), (torch.randn(5, 4, 6), torch.randint(3, (5,)))),
}


def one_by_one(batch: Batch) -> list[Batch]:
    if isinstance(batch, dict):
        return [{key: value[n : n + 1] for key, value in batch.items()} for n in range(5)]
    return [tuple(part[n : n + 1] for part in batch) for n in range(5)]


def as_double(batch: Batch) -> Batch:
    def convert(value: Tensor) -> Tensor:
        return value.double() if value.is_floating_point() else value

    if isinstance(batch, dict):
        return {key: convert(value) for key, value in batch.items()}
    return tuple(map(convert, batch))


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    if isinstance(batch, dict):
        return model(**batch).loss
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_experts_in_grouped_products() -> None:
    torch.manual_seed(0)
    model, batch = mixtral()
    model.eval()
    expected = ewc.fisher_diagonal(model, one_by_one(batch), kind="empirical")
    model.set_experts_implementation("grouped_mm")  # the default
    fisher = ewc.fisher_diagonal(model, [batch], kind="empirical")
    for name in expected:
        assert (fisher[name] - expected[name]).norm() <= 1e-6 * expected[name].norm()


def with_other_labels(batch: Batch) -> Batch:
    if isinstance(batch, dict):
        return batch | {"labels": batch["labels"].roll(1, 0)}
    return batch[0], batch[1].roll(1)


@pytest.mark.parametrize("name", rows("Architectures"))
def test_an_architecture(name: str) -> None:
    torch.manual_seed(0)
    model, batch = ARCHITECTURES[name]()
    model, batch = model.double().eval(), as_double(batch)
    kind: Any = rows("Architectures")[name][-1]
    memory = ewc.EWC(model, strength=100.0)
    fisher = memory.consolidate([batch], kind=kind)
    alone = ewc.fisher_diagonal(model, one_by_one(batch), kind=kind)
    assert all(bool(tensor.isfinite().all()) for tensor in fisher.values())
    for key, expected in alone.items():
        torch.testing.assert_close(fisher[key], expected, rtol=1e-6, atol=1e-14)

    state = copy.deepcopy(model.state_dict())
    new = with_other_labels(batch)
    energies = []
    for pulled in (True, False):
        model.load_state_dict(state)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        if pulled:
            memory.attach(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, new).backward()
            optimizer.step()
        with torch.no_grad():
            energies.append(float(memory.penalty()))
    assert 0 < energies[0] < 0.9 * energies[1]


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "`SGD`": lambda p: torch.optim.SGD(p, lr=0.1),
    "`SGD` with momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "`Adam`": lambda p: torch.optim.Adam(p, lr=0.05),
    "`AdamW`": lambda p: torch.optim.AdamW(p, lr=0.05),
    "`AdamW`, fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "`NAdam`": lambda p: torch.optim.NAdam(p, lr=0.05),
    "`RAdam`": lambda p: torch.optim.RAdam(p, lr=0.1),
    "`RMSprop`": lambda p: torch.optim.RMSprop(p, lr=0.02),
    "`Adagrad`": lambda p: torch.optim.Adagrad(p, lr=0.2),
    "`Adafactor`": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "`LBFGS`": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=5),
    "`Muon`": lambda p: torch.optim.Muon(p, lr=0.05),
    "`Lion` of lion-pytorch": lambda p: lion_pytorch.Lion(p, lr=0.02),
    "`AdamWScheduleFree` of schedulefree": lambda p: schedulefree.AdamWScheduleFree(p, lr=0.05),
    "`Adafactor` of Transformers": lambda p: transformers.Adafactor(
        p, lr=0.05, relative_step=False, scale_parameter=False
    ),
    "`AdamW8bit` of bitsandbytes": lambda p: pytest.importorskip("bitsandbytes").optim.AdamW8bit(
        p, lr=0.05, min_8bit_size=1
    ),
    "`AdamW8bit` of torchao": lambda p: pytest.importorskip("torchao.optim").AdamW8bit(p, lr=0.05),
}


def distance_from_anchor(name: str, how: Any, strength: float) -> float:
    """Train away from the anchor, and return how far it went."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)  # 8-bit optimizers quantize from 4,096 numbers on
    x, y = torch.randn(32, 64), torch.randn(32, 64)
    anchor = model.weight.detach().clone()
    memory = ewc.EWC(model, strength=strength)
    memory.anchor(1.0)
    optimizer = OPTIMIZERS[name](model.parameters())
    memory.attach(optimizer, how=how)
    if hasattr(optimizer, "train"):  # schedule-free: gradients are taken elsewhere than results
        optimizer.train()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(60):
        if name == "`LBFGS`":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    return float((model.weight - anchor).norm().detach())


@pytest.mark.parametrize("name", rows("Optimizers"))
def test_an_optimizer(name: str) -> None:
    (how,) = rows("Optimizers")[name]
    free, pulled = (distance_from_anchor(name, how, strength) for strength in (0.0, 1.0))
    assert 0 < pulled < 0.7 * free
    if how == "gradient":
        with pytest.raises(ValueError, match=r"knows the steps of .* use attach\(optimizer, how="):
            distance_from_anchor(name, "proximal", 1.0)


@pytest.mark.parametrize("name", rows("Trainers"))
def test_a_trainer_has_its_test(name: str) -> None:
    file = ROOT / rows("Trainers")[name][-1].strip("`")
    tests = re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    assert tests
    if "integrations" in file.parts:
        assert any("plain_loop" in test or "resumed" in test for test in tests)


def test_every_row_is_known_and_every_case_has_a_row() -> None:
    assert list(rows("Architectures")) == list(ARCHITECTURES)
    assert list(rows("Optimizers")) == list(OPTIMIZERS)
