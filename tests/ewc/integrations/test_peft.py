"""PEFT: memories of the factors A and B, and of the weights W = W₀ + s B A."""

import copy
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.trainers import (
    OLD,
    PREFIX,
    ROWS,
    TEXT,
    adam,
    data,
    distance,
    factors,
    gpt2_with_lora,
    merged,
    move,
    plain_name,
    products,
    small_net,
    tiny_gpt2,
    with_lora,
)
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import ewc
import ewc.integrations.peft
from ewc import EWC, EWCWarning
from ewc.integrations.peft import LoraEWC
from ewc.integrations.transformers import EWCCallback


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
    assert memory.estimated_rise() * 3 * 3 + 1.5 * memory._wells.total.offset == pytest.approx(
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
        (integers, r"has a base weight that is of dtype torch\.int8"),
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


def test_a_merged_adapter_is_named_as_such() -> None:
    model = with_adapter()
    memory = EWC(model, strength=1.0)
    model.merge_adapter()
    with pytest.raises(ValueError, match=r"adapter is merged .* call unmerge_adapter\(\) first"):
        memory.consolidate([{"input_ids": OLD, "labels": OLD}], kind="empirical")
    model.unmerge_adapter()
    memory.consolidate([{"input_ids": OLD, "labels": OLD}], kind="empirical")


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
