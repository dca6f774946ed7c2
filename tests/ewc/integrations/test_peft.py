"""A memory of W = W₀ + s B A, against plain models whose weights are W."""

import copy
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.lora import (
    PREFIX,
    TEXT,
    data,
    factors,
    gpt2_with_lora,
    merged,
    move,
    plain_name,
    products,
    small_net,
    with_lora,
)
from support.trainers import OLD, tiny_gpt2
from torch import Tensor, nn

import ewc
import ewc.integrations.peft
from ewc import EWC, EWCWarning
from ewc.integrations.peft import LoraEWC


def slow_fisher(net: nn.Module, names: list[str], losses: Iterator[Tensor]) -> dict[str, Tensor]:
    """The mean of squared gradients, one sample after the other."""
    total = {name: torch.zeros_like(net.get_parameter(name)) for name in names}
    found = [torch.autograd.grad(loss, [net.get_parameter(n) for n in names]) for loss in losses]
    for gradients in found:
        for name, gradient in zip(names, gradients, strict=True):
            total[name] += gradient.square() / len(found)
    return total


def test_the_fisher_of_linear_layers_is_that_of_the_merged_model() -> None:
    model = with_lora(small_net())
    net = merged(small_net(), model)
    x, y = data()
    fisher = LoraEWC(model, strength=1.0).consolidate([(x, y)], kind="empirical")
    losses = (nn.functional.cross_entropy(net(x[n : n + 1]), y[n : n + 1]) for n in range(len(x)))
    expected = slow_fisher(net, ["0.weight", "2.weight"], losses)
    assert {plain_name(name) for name in fisher} == set(expected)
    for name, value in fisher.items():
        torch.testing.assert_close(value, expected[plain_name(name)])


def test_the_fisher_of_transposed_layers_is_that_of_the_merged_model() -> None:
    model = gpt2_with_lora()
    net = merged(tiny_gpt2().double(), model)
    fisher = LoraEWC(model, strength=1.0).consolidate([TEXT], kind="empirical", positions="sum")
    losses = (net(input_ids=row, labels=row).loss * (row.shape[1] - 1) for row in OLD.split(1))
    expected = slow_fisher(net, [plain_name(name) for name in fisher], losses)
    assert len(fisher) == 8
    for name, value in fisher.items():
        torch.testing.assert_close(value, expected[plain_name(name)])


@pytest.mark.parametrize("make", [lambda: with_lora(small_net()), gpt2_with_lora])
def test_several_tasks_are_the_sum_of_their_penalties(make: Callable[[], nn.Module]) -> None:
    model = make()
    batches = [TEXT] if "c_attn" in str(model) else [data()]
    memory = LoraEWC(model, strength=3.0)
    tasks = []
    for seed in range(3):
        fisher = memory.consolidate(batches, kind="empirical", task=str(seed))
        anchors = {name: w.detach().clone() for name, w in products(model).items()}
        tasks.append((fisher, anchors))
        memory.penalty()  # else the next task would warn of weights that moved without a pull
        move(model, seed)

    def by_hand() -> Tensor:
        now = products(model)
        return sum(
            1.5 * (fisher[name] * (now[name] - anchors[name]) ** 2).sum()
            for fisher, anchors in tasks
            for name in fisher
        )

    torch.testing.assert_close(memory.penalty(), by_hand())
    assert memory.penalty().item() > 0
    found = torch.autograd.grad(memory.penalty(), factors(model))
    expected = torch.autograd.grad(by_hand(), factors(model))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert memory.estimated_rise() * 3 * 3 + 1.5 * memory._wells.total.bottom == pytest.approx(
        by_hand().item()
    )


def test_a_full_rank_has_the_penalty_of_a_trained_weight() -> None:
    """An adapter of full rank can be any ΔW: the memory is that of the whole weight."""
    model, net = with_lora(small_net(), rank=4), small_net()
    lora = LoraEWC(model, strength=2.0)
    plain = EWC(merged(net, model), strength=2.0, parameters="*.weight")
    for memory in (lora, plain):
        memory.consolidate([data()[0]])
    move(model, seed=5)
    merged(net, model)
    torch.testing.assert_close(lora.penalty(), plain.penalty())
    assert plain.penalty().item() > 0


def test_what_the_base_model_knew_is_kept_where_the_factors_have_no_fisher() -> None:
    model = with_lora(small_net(), start=True)
    with pytest.warns(EWCWarning, match="zero for all of .*lora_A"):
        EWC(model, strength=1.0).consolidate([data()[0]])
    memory = LoraEWC(model, strength=1.0)
    fisher = memory.consolidate([data()[0]])
    for name, value in ewc.fisher_diagonal(small_net(), [data()[0]]).items():
        if name.endswith("weight"):
            found = fisher[PREFIX + name.replace(".weight", ".base_layer.weight")]
            torch.testing.assert_close(found, value)
            assert float(found.min()) > 0
    move(model, seed=1)
    assert memory.penalty().item() > 0


def test_requires_grad_is_left_as_found_even_after_an_error() -> None:
    model = with_lora(small_net())
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    memory = LoraEWC(model, strength=1.0)

    def broken() -> Iterator[Tensor]:
        yield data()[0]
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        memory.consolidate(broken())
    assert memory.tasks == ()
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    memory.consolidate([data()[0]])
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())


def test_a_state_and_a_file_restore_the_memory(tmp_path: Path) -> None:
    model = with_lora(small_net())
    memory = LoraEWC(model, strength=7.0)
    memory.consolidate([data()[0]], task="A")
    memory.save(tmp_path / "memory.safetensors")
    state = memory.state_dict()
    move(model, seed=1)
    other = LoraEWC(model, strength=1.0)
    other.load_state_dict(state)
    loaded = LoraEWC.load(tmp_path / "memory.safetensors", model)
    assert repr(loaded) == repr(other) == "LoraEWC(strength=7.0, decay=1.0, tasks=['A'])"
    for one in (other, loaded):
        torch.testing.assert_close(one.penalty(), memory.penalty())
    again = copy.deepcopy((model, memory))
    move(again[0], seed=2)
    assert again[1].penalty().item() != pytest.approx(memory.penalty().item())


@pytest.mark.parametrize("anchors", [True, False])
def test_a_memory_of_the_whole_base_model_protects_the_adapted_one(
    anchors: bool, tmp_path: Path
) -> None:
    whole = EWC(small_net(), strength=2.0)
    fisher = whole.consolidate([data()[0]], task="base")
    whole.save(tmp_path / "base.safetensors", anchors=anchors)
    model = with_lora(small_net(), start=True)
    memory = LoraEWC.load(tmp_path / "base.safetensors", model, rename=adapted_name)
    move(model, seed=1)
    now, base = products(model), small_net()
    expected = sum(
        (fisher[name] * (now[adapted_name(name)] - base.get_parameter(name)) ** 2).sum()
        for name in ("0.weight", "2.weight")
    )
    torch.testing.assert_close(memory.penalty(), expected)


def adapted_name(name: str) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{PREFIX}{layer}.base_layer.{kind}"


def test_patterns_select_layers_by_their_base_weights() -> None:
    model = with_lora(small_net())
    memory = LoraEWC(model, strength=1.0, parameters="*.0.base_layer.*")
    assert set(memory.consolidate([data()[0]])) == {f"{PREFIX}0.base_layer.weight"}
    with pytest.raises(ValueError, match=r"knows them by their base weights, such as 'base_model"):
        LoraEWC(model, strength=1.0, parameters="*lora_A*")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


def merged_adapter() -> nn.Module:
    model = with_lora(small_net())
    model.merge_adapter()
    return model


def two_adapters() -> nn.Module:
    model = with_lora(small_net())
    model.add_adapter("second", model.peft_config["default"])
    model.base_model.set_adapter(["default", "second"])
    return model


def disabled() -> nn.Module:
    model = with_lora(small_net())
    model.base_model.disable_adapter_layers()
    return model


def integers() -> nn.Module:
    model = with_lora(small_net())
    layer = model.base_model.model[0].base_layer
    layer.weight = nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (small_net, r"expected a model with LoRA layers .* this Sequential has none"),
        (lambda: with_lora(small_net(), use_dora=True), "'base_model.model.0' is computed by Dora"),
        (
            lambda: with_lora(nn.Sequential(nn.Embedding(4, 3)), target_modules=["0"]),
            r"is a peft\.tuners\.lora\.layer\.Embedding: only linear layers",
        ),
        (
            lambda: with_lora(nn.Sequential(nn.Conv2d(3, 3, 3)), target_modules=["0"]),
            r"is a peft\.tuners\.lora\.layer\.Conv2d: only linear layers",
        ),
        (merged_adapter, r"has a merged adapter: call unmerge_adapter\(\)"),
        (two_adapters, r"several active adapters, \['default', 'second'\]: activate one"),
        (disabled, "has its adapters disabled"),
        (integers, r"has a base weight that is of type torch\.int8"),
        (
            lambda: with_lora(Tied(), target_modules=["second"]),
            r"is also '.*second\.base_layer\.weight', where the adapter has no effect",
        ),
    ],
)
def test_what_is_not_known_is_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoraEWC(make(), strength=1.0)


def test_an_adapter_that_is_merged_later_is_refused_too() -> None:
    model = with_lora(small_net())
    memory = LoraEWC(model, strength=1.0)
    memory.anchor(1.0)
    model.merge_adapter()
    with pytest.raises(ValueError, match="merged"):
        memory.penalty()
    model.unmerge_adapter()
    memory.penalty()


def test_only_the_active_adapter_is_remembered() -> None:
    model = with_lora(small_net())
    model.add_adapter("second", model.peft_config["default"])
    model.set_adapter("second")
    move(model, seed=4)
    memory = LoraEWC(model, strength=1.0)
    memory.anchor(1.0)
    expected = products(model, "second")
    for name, anchor in memory._wells.total.anchor.items():
        torch.testing.assert_close(anchor, expected[name].detach())


def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft.tuners.lora.layer", None)
    with pytest.raises(ImportError, match=r"pip install 'ewc\[peft\]'"):
        runpy.run_path(str(ewc.integrations.peft.__file__))
