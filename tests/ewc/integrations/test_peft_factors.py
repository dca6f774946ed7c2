"""LoRA with Kronecker factors: the penalty of ΔW through the two matrices, W₀ never read."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainers import (
    PREFIX,
    TEXT,
    adam,
    data,
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
from torch.utils._python_dispatch import TorchDispatchMode

import ewc
import ewc.curvature.kronecker
from ewc import EWC
from ewc.integrations.peft import LoraEWC

Factors = dict[str, tuple[Tensor, Tensor]]


def memory_of(model: nn.Module, **options: Any) -> LoraEWC:
    return LoraEWC(model, **{"strength": 3.0, "curvature": "kronecker", **options})


def dense(fisher: ewc.KroneckerFisher, bias: bool = False) -> Factors:
    """G and A of each weight, without the row of a bias."""
    return {
        name: (own.outputs.clone(), own.inputs[:-1, :-1] if own.bias else own.inputs)
        for name, own in fisher.factors.items()
    }


def energy(tasks: list[Factors], apart: dict[str, Tensor], ridge: float = 0.0) -> Tensor:
    """E(Δ) of all tasks around one center, with matrices of the size of W."""
    total = torch.zeros((), dtype=torch.float64)
    for name, delta in apart.items():
        g, a = (sum(task[name][n] for task in tasks) for n in (0, 1))
        total = total + (delta * (g @ delta @ a)).sum() / len(tasks)
    return total


def distances(model: nn.Module, anchors: dict[str, Tensor]) -> dict[str, Tensor]:
    """W − W* of each layer as (outputs, inputs), by the names of the base weights."""
    now = products(model)
    apart = {name: now[name] - anchors[name] for name in anchors}
    transposed = {
        f"{name}.base_layer.weight": layer.fan_in_fan_out
        for name, layer in model.named_modules()
        if hasattr(layer, "lora_A")
    }
    return {name: d.T if transposed[name] else d for name, d in apart.items()}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: w.detach().clone() for name, w in products(model).items()}


@pytest.mark.parametrize("kind", ["exact", "empirical"])
def test_the_factors_are_those_of_the_merged_model(kind: Any) -> None:
    model = with_lora(small_net())
    found = memory_of(model).consolidate([data()], kind=kind)
    expected = dense(ewc.fisher_kronecker(merged(small_net(), model), [data()], kind=kind))
    assert {plain_name(name) for name in found.factors} == expected.keys()
    assert not found.diagonal
    for name, own in found.factors.items():
        g, a = expected[plain_name(name)]
        torch.testing.assert_close(own.outputs, g)
        torch.testing.assert_close(own.inputs, a)
        weight = merged(small_net(), model).get_parameter(plain_name(name))
        assert own.at_zero == pytest.approx(float((weight * (g @ weight @ a)).sum()))


def test_the_factors_of_transposed_layers_and_sequences() -> None:
    model = gpt2_with_lora()
    batches = [TEXT, {name: rows[:5, :6] for name, rows in TEXT.items()}]
    found = memory_of(model).consolidate(batches, kind="empirical", max_samples=19)
    batches[1] = {name: rows[:3] for name, rows in batches[1].items()}
    net = merged(tiny_gpt2().double(), model)
    names = [plain_name(name) for name in found.factors]
    expected = dense(ewc.fisher_kronecker(net, batches, kind="empirical", parameters=names))
    assert len(found.factors) == 8
    for name, own in found.factors.items():
        torch.testing.assert_close(own.outputs, expected[plain_name(name)][0])
        torch.testing.assert_close(own.inputs, expected[plain_name(name)][1])


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("make", [lambda: with_lora(small_net()), gpt2_with_lora])
def test_the_penalty_and_its_gradient_are_those_of_the_whole_weights(
    make: Any, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cut:
        monkeypatch.setattr(ewc.curvature.kronecker, "LEADING", 3)
    model = make()
    batches = [TEXT] if "c_attn" in str(model) else [data()]
    memory, tasks = memory_of(model, keep_tasks=True), []
    for seed in range(3):
        tasks.append(dense(memory.consolidate(batches, kind="empirical", task=str(seed))))
        memory.penalty()
        anchors = weights_of(model)
        move(model, seed)
    if cut:  # the same factors, cut
        layers = memory._wells.total.layers.values()
        both = [(layer.outputs.full() / 3, layer.inputs.full()) for layer in layers]
        tasks = [dict(zip(tasks[0], both, strict=True))]
    apart = distances(model, anchors)
    expected = 1.5 * energy(tasks, apart)
    torch.testing.assert_close(memory.penalty(), expected)
    assert expected > 0
    found = torch.autograd.grad(memory.penalty(), factors(model))
    by_hand = torch.autograd.grad(expected, factors(model))
    for one, other in zip(found, by_hand, strict=True):
        torch.testing.assert_close(one, other)
    optimizer = torch.optim.SGD(factors(model), lr=1e-4)
    handle, before = memory.attach(optimizer), [p.detach().clone() for p in factors(model)]
    optimizer.step()
    handle.remove()
    for start, p, gradient in zip(before, factors(model), by_hand, strict=True):
        torch.testing.assert_close(p.detach(), start - 1e-4 * gradient)


@pytest.mark.parametrize("options", [{"floor": 0.3}, {"normalize": 5.0}])
def test_shaping_and_the_scale_of_a_relative_budget(options: dict[str, float]) -> None:
    model = with_lora(small_net())
    memory = memory_of(model, strength=None, budget="auto")
    fisher = memory.consolidate([data()], **options)
    anchors = weights_of(model)
    factor = 1.0
    if "normalize" in options:
        factor = 5.0 / sum(float(own.trace()) for own in fisher.factors.values())
    ridges = {
        name: options.get("floor", 0.0) * own.trace() / (len(own.inputs) * len(own.outputs))
        for name, own in fisher.factors.items()
    }
    move(model, seed=5)

    def whole(apart: dict[str, Tensor]) -> float:
        flat = sum(ridges[name] * float(d.square().sum()) for name, d in apart.items())
        return float(factor * energy([dense(fisher)], apart)) + flat

    assert memory.estimated_rise() == pytest.approx(whole(distances(model, anchors)) / 2)
    at_zero = float(factor * energy([dense(fisher)], anchors))
    assert memory.allowed_rise() == pytest.approx(0.03**2 * at_zero / 2)


class Quantized(nn.Module):
    """A linear layer of whole numbers and a scale, as those of bitsandbytes: no parameters."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        scale = layer.weight.detach().abs().max() / 127
        self.register_buffer("codes", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", layer.bias.detach())

    def weight(self) -> Tensor:
        return self.codes.double() * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight(), self.bias)


def quantized() -> tuple[nn.Module, nn.Module]:
    """A model with a quantized base, and the same one in floating point."""
    model, floating = with_lora(small_net()), with_lora(small_net())
    for name, layer in model.named_modules():
        if hasattr(layer, "lora_A"):
            layer.base_layer = Quantized(layer.base_layer)
            with torch.no_grad():
                other = floating.get_submodule(name).base_layer
                other.weight.copy_(layer.base_layer.weight())
    return model, floating


def test_a_quantized_base_is_never_read() -> None:
    memories = []
    for model in quantized():
        memory = memory_of(model, strength=None, budget="auto")
        memory.consolidate([data()], task="A")
        optimizer = adam(factors(model))
        memory.attach(optimizer)
        for seed in range(5):
            x, y = data(seed + 1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        memories.append(memory)
    for measure in (LoraEWC.estimated_rise, LoraEWC.allowed_rise):
        found, expected = map(measure, memories)
        assert found == pytest.approx(expected)
        assert found > 0
    with pytest.raises(ValueError, match=r"is no parameter; quantized .* curvature='kronecker'"):
        LoraEWC(quantized()[0])  # a diagonal is that of W


class Largest(TorchDispatchMode):
    """Notes the size of the largest result of any operation."""

    size = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        is_new = function._schema.returns and function._schema.returns[0].alias_info is None
        if isinstance(result, Tensor) and is_new:
            self.size = max(self.size, result.numel())
        return result


def test_no_matrix_of_the_size_of_the_weight_is_formed_in_a_step() -> None:
    inputs, outputs, rank = 60, 50, 2
    model = with_lora(nn.Sequential(nn.Linear(inputs, outputs)), target_modules=["0"], rank=rank)
    memory = memory_of(model)
    memory.consolidate([torch.randn(9, inputs)])
    move(model, seed=1)
    optimizer = adam(factors(model))
    memory.attach(optimizer)
    with Largest() as largest:
        optimizer.step()
        memory.estimated_rise()
    assert 0 < largest.size <= 4 * rank * (inputs + outputs)


@pytest.mark.parametrize("bits", ["full", "bfloat16"])
@pytest.mark.parametrize("anchors", [True, False])
def test_a_memory_of_the_base_model_is_one_of_its_adapters(
    bits: Any, anchors: bool, tmp_path: Path
) -> None:
    base = EWC(small_net(), curvature="kronecker", keep_tasks=True)
    factors_of_base = dense(base.consolidate([data()], task="base"))
    base.save_pretrained(tmp_path, precision=bits, anchors=anchors)
    model = with_lora(small_net(), start=True)
    memory = LoraEWC.from_pretrained(tmp_path, model)
    assert (memory.tasks, memory.budget, memory.estimated_rise()) == (("base",), "auto", 0)
    start = {f"{PREFIX}{n}.base_layer.weight": small_net()[n].weight.detach() for n in (0, 2)}
    named = {f"{PREFIX}{n}.base_layer.weight": factors_of_base[f"{n}.weight"] for n in (0, 2)}
    move(model, seed=4)
    expected = float(energy([named], distances(model, start))) / 2
    close = {"rel": 1e-6 if bits == "full" else 3e-2}
    assert memory.estimated_rise() == pytest.approx(expected, **close)
    allowed = 0.03**2 * float(energy([named], start)) / 2
    assert memory.allowed_rise() == pytest.approx(allowed, **close)
    with memory.without("base"):
        assert memory.estimated_rise() == 0
    memory.consolidate([data(1)], task="B")  # and goes on with the adapter
    assert memory.tasks == ("base", "B")
    moved = with_lora(small_net(), start=True)
    with torch.no_grad():
        moved.get_parameter(f"{PREFIX}2.base_layer.weight")[0, 0] += 1
    with pytest.raises(ValueError, match="with other weights"):
        LoraEWC.from_pretrained(tmp_path, moved)


def test_a_memory_of_the_base_model_with_a_quantized_one(tmp_path: Path) -> None:
    base = EWC(small_net(), curvature="kronecker")
    base.consolidate([data()], task="base")
    base.save_pretrained(tmp_path)
    model, _ = quantized()
    found = LoraEWC.from_pretrained(tmp_path, model)
    plain = with_lora(small_net())
    expected = LoraEWC.from_pretrained(tmp_path, plain)
    assert found.estimated_rise() == pytest.approx(expected.estimated_rise())
    assert found.estimated_rise() > 0


def test_it_is_saved_and_loaded_by_the_names_of_its_matrices(tmp_path: Path) -> None:
    model = with_lora(small_net())
    memory = memory_of(model)
    memory.consolidate([data()], task="A")
    memory.save_pretrained(tmp_path)
    again = with_lora(small_net())
    loaded = LoraEWC.from_pretrained(tmp_path, again)
    fresh = memory_of(again, strength=1.0)
    fresh.load_state_dict(memory.state_dict())
    copied = copy.deepcopy((model, memory))
    for each in (model, again, copied[0]):
        move(each, seed=2)
    for other in (loaded, fresh, copied[1]):
        assert torch.equal(other.penalty(), memory.penalty())
        assert other.allowed_rise() == memory.allowed_rise()
    assert memory.penalty() > 0
    with pytest.raises(ValueError, match="with other weights"):
        LoraEWC.from_pretrained(tmp_path, again)
    assert set(memory._wells.total.anchor) == {
        n for n, p in model.named_parameters() if "lora" in n
    }


def test_a_head_beside_the_adapters_and_a_selection() -> None:
    model = with_lora(small_net(), target_modules=["0"], modules_to_save=["2"])
    fisher = memory_of(model).consolidate([data()])
    head = f"{PREFIX}2.modules_to_save.default"
    assert fisher.factors.keys() == {f"{PREFIX}0.base_layer.weight", f"{head}.weight"}
    assert fisher.factors[f"{head}.weight"].bias == f"{head}.bias"
    chosen = memory_of(with_lora(small_net()), parameters="*.2.base_layer.*")
    assert set(chosen.consolidate([data()]).factors) == {f"{PREFIX}2.base_layer.weight"}
    with pytest.raises(ValueError, match=r"knows them by their base weights"):
        memory_of(with_lora(small_net()), parameters="*lora_A*")


def test_what_has_no_factors_is_refused() -> None:
    model = with_lora(small_net())
    memory = memory_of(model)
    with pytest.raises(ValueError, match=r"no ready factors: .*from_pretrained\(DIR, model\)"):
        memory.consolidate(ewc.fisher_kronecker(small_net(), [data()]))
    with pytest.raises(ValueError, match="callable likelihood has no factors"):
        memory.consolidate([data()], kind="empirical", likelihood=lambda o, t: o.sum(1))
    with pytest.raises(ValueError, match="expected how='gradient'"):
        memory.attach(adam(factors(model)), how="proximal")
    model.merge_adapter()
    with pytest.raises(ValueError, match="has a merged adapter"):
        memory_of(model)
