"""A memory as a directory: it is loaded onto the model that it belongs to, and onto no other."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainers import tiny_gpt2
from torch import nn

import ewc
from ewc import EWC

CURVATURES = ["diagonal", "kronecker"]


def net(seed: int = 0, hidden: int = 6) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.LayerNorm(hidden), nn.Linear(6, 3))


def data(seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(20, 4, generator=generator), torch.arange(20) % 3)]


def saved(directory: Path, model: nn.Module, curvature: Any = "diagonal", **options: Any) -> EWC:
    memory = EWC(model, strength=3.0, curvature=curvature)
    memory.consolidate(data(), task="A")
    memory.save_pretrained(directory, **options)
    return memory


def shaken(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p.add_(0.1 * (n + 1))
    return model


@pytest.mark.parametrize("curvature", CURVATURES)
@pytest.mark.parametrize("anchors", [True, False])
def test_it_comes_back_as_it_was(tmp_path: Path, curvature: Any, anchors: bool) -> None:
    memory = saved(tmp_path / "deep" / "memory", net(), curvature, anchors=anchors)
    model = net()
    loaded = EWC.from_pretrained(tmp_path / "deep" / "memory", model)
    assert (loaded.tasks, loaded.strength, loaded.curvature) == (("A",), 3.0, curvature)
    shaken(memory.model)
    shaken(model)
    assert torch.equal(loaded.penalty(), memory.penalty())
    assert loaded.penalty() > 0


DOUBLE, SINGLE, BRAIN, HALF = torch.float64, torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    ("checkpoint", "firsts", "thens"),
    [
        (SINGLE, (DOUBLE, SINGLE, BRAIN), (DOUBLE, SINGLE, BRAIN)),
        (SINGLE, (DOUBLE, SINGLE, HALF), (HALF,)),
        (BRAIN, (SINGLE, BRAIN), (DOUBLE, SINGLE, BRAIN, HALF)),
        (HALF, (SINGLE, HALF), (DOUBLE, SINGLE, BRAIN, HALF)),
    ],
)
def test_the_same_checkpoint_in_another_dtype(
    tmp_path: Path, checkpoint: Any, firsts: Any, thens: Any
) -> None:
    for first in firsts:
        memory = EWC(net().to(checkpoint).to(first))
        memory.anchor(1.0)
        memory.save_pretrained(tmp_path)
        for then in thens:
            model = net().to(checkpoint).to(then)
            assert EWC.from_pretrained(tmp_path, model).tasks == ("task 1",), (first, then)


@pytest.mark.parametrize("where", ["0.weight", "2.bias", "3.bias"])
def test_another_checkpoint_is_refused_with_both_names(tmp_path: Path, where: str) -> None:
    model, other = tiny_gpt2(), tiny_gpt2()
    model.config._name_or_path, other.config._name_or_path = "us/small", "us/tuned"
    memory = EWC(model)
    memory.anchor(1.0)
    memory.save_pretrained(tmp_path)
    assert EWC.from_pretrained(tmp_path, other).tasks
    with torch.no_grad():
        other.transformer.h[1].ln_2.bias[3] += 0.01
    expected = r"the memory of 'us/small' \(a GPT2LMHeadModel\), and this model is 'us/tuned' .*"
    with pytest.raises(ValueError, match=expected + "with other weights: their fingerprint"):
        EWC.from_pretrained(tmp_path, other)
    saved(tmp_path / "net", net())
    changed = net()
    with torch.no_grad():
        changed.get_parameter(where)[0] += 0.02
    with pytest.raises(ValueError, match="of 'Sequential', and this model is 'Sequential', with"):
        EWC.from_pretrained(tmp_path / "net", changed)
    path = tmp_path / "net" / "memory.safetensors"
    assert EWC.load(path, changed).tasks == ("A",)  # as the error says


def test_another_architecture_is_refused_with_both_names(tmp_path: Path) -> None:
    saved(tmp_path, net())
    with pytest.raises(ValueError, match=r"of 'Sequential', and .* 'Linear': the file protects '"):
        EWC.from_pretrained(tmp_path, nn.Linear(4, 3))
    narrow = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))
    with pytest.raises(ValueError, match=r"of 'Sequential', and .* in the file and \(5,"):
        EWC.from_pretrained(tmp_path, narrow)


@pytest.mark.parametrize("curvature", CURVATURES)
def test_it_belongs_to_the_weights_of_the_last_consolidation(
    tmp_path: Path, curvature: Any
) -> None:
    model = net()
    memory = EWC(model, curvature=curvature)  # a diagonal has its anchors between the tasks
    memory.consolidate(data(0), task="A")
    memory.penalty().backward()  # no warning that the weights moved without it
    shaken(model)
    memory.consolidate(data(1), task="B")
    released = {name: value.clone() for name, value in model.state_dict().items()}
    shaken(model)
    memory.save_pretrained(tmp_path)
    other = net()
    with pytest.raises(ValueError, match="with other weights"):
        EWC.from_pretrained(tmp_path, other)
    other.load_state_dict(released)
    loaded = EWC.from_pretrained(tmp_path, other)
    assert loaded.tasks == ("A", "B")
    loaded.save_pretrained(tmp_path / "again")  # not consolidated here, but known
    assert EWC.from_pretrained(tmp_path / "again", other).tasks == ("A", "B")


def test_new_rows_and_names(tmp_path: Path) -> None:
    memory = saved(tmp_path, net())
    larger = nn.ModuleDict({"net": net()})
    larger["net"][3] = nn.Linear(6, 5)
    with torch.no_grad():
        for name, parameter in memory.model.named_parameters():
            larger.get_parameter(f"net.{name}")[tuple(map(slice, parameter.shape))] = parameter
    loaded = EWC.from_pretrained(tmp_path, larger, rename="net.{}".format, grow=True)
    assert loaded.estimated_rise() == 0
    with pytest.raises(ValueError, match=r"this model is 'ModuleDict': .* use grow=True"):
        EWC.from_pretrained(tmp_path, larger, rename="net.{}".format)


def test_the_card_and_the_config_say_what_it_is(tmp_path: Path) -> None:
    model = tiny_gpt2()
    model.config._name_or_path = "us/small"
    memory = EWC(model, curvature="kronecker")
    memory.consolidate([{"input_ids": torch.arange(16).view(2, 8)}], task="old", kind="sampled")
    card = {"data": "numbers in a row", "samples": 2}
    memory.save_pretrained(tmp_path, card=card)
    config = json.loads((tmp_path / "config.json").read_text())
    known = {"model": "us/small", "model_class": "GPT2LMHeadModel", "tasks": ["old"], "card": card}
    assert known.items() <= config.items()
    assert config["budget"] == "auto"
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("---\nlibrary_name: ewc\nbase_model: us/small\n")
    assert "| data | numbers in a row |" in readme
    assert {file.name for file in tmp_path.iterdir()} == {
        "memory.safetensors",
        "config.json",
        "README.md",
    }


def test_a_name_that_is_a_place_on_this_machine_is_not_shared(tmp_path: Path) -> None:
    model = tiny_gpt2()
    model.save_pretrained(tmp_path / "my-model")
    again = type(model).from_pretrained(tmp_path / "my-model")
    memory = EWC(again)
    memory.anchor(1.0)
    memory.save_pretrained(tmp_path / "memory")
    assert ewc.read_card(tmp_path / "memory" / "memory.safetensors")["model"] == "my-model"
    texts = [(tmp_path / "memory" / name).read_text() for name in ("config.json", "README.md")]
    assert not any(str(tmp_path) in text for text in texts)


def test_directories_that_are_none_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no .*config\.json"):
        EWC.from_pretrained(tmp_path, net())
    tiny_gpt2().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is of something else, such as a model"):
        EWC.from_pretrained(tmp_path, net())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged: it is not JSON"):
        EWC.from_pretrained(tmp_path, net())
    saved(tmp_path / "a", net())
    saved(tmp_path / "b", net(1))
    (tmp_path / "a" / "memory.safetensors").replace(tmp_path / "b" / "memory.safetensors")
    with pytest.raises(ValueError, match="are of different memories"):
        EWC.from_pretrained(tmp_path / "b", net(1))
    with pytest.raises(ValueError, match="expected a memory with a task"):
        EWC(net()).save_pretrained(tmp_path / "c")
