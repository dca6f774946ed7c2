"""Small models with LoRA adapters, and by hand the weights that they compute with."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from support.trainers import OLD, tiny_gpt2

TEXT = {"input_ids": OLD, "labels": OLD}
PREFIX = "base_model.model."


def small_net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def with_lora(net: nn.Module, rank: int = 2, start: bool = False, **options: Any) -> nn.Module:
    """A model with adapters whose two factors are random, unless they are as at the start."""
    settings = {"target_modules": ["0", "2"], "lora_alpha": 3, **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = get_peft_model(net, LoraConfig(r=rank, **settings), autocast_adapter_dtype=False)
    if not start:
        move(model, seed=3)
    return model


def gpt2_with_lora(**options: Any) -> nn.Module:
    """The same of a GPT-2, whose base weights are transposed; some of them are square."""
    modules = {"target_modules": ["c_attn", "c_fc", "c_proj"], "fan_in_fan_out": True}
    return with_lora(tiny_gpt2().double(), **modules, **options)


def move(model: nn.Module, seed: int) -> None:
    """Change the factors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for factor in factors(model):
            factor += 0.3 * torch.randn(factor.shape, generator=generator).to(factor)


def factors(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if "lora_" in name and p.requires_grad]


def products(model: nn.Module, adapter: str = "default") -> dict[str, Tensor]:
    """W₀ + s B A of each layer by hand, by the name of the base weight; differentiable."""
    found = {}
    for name, layer in model.named_modules():
        if hasattr(layer, "lora_A"):
            a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
            scale = layer.lora_alpha[adapter] / layer.r[adapter]
            base = layer.base_layer.weight
            delta = torch.einsum("ok,ki->oi", b, a) * scale
            found[f"{name}.base_layer.weight"] = base + (delta.T if layer.fan_in_fan_out else delta)
    return found


def data(seed: int = 0, rows: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (rows,), generator=generator)


def merged(net: nn.Module, model: nn.Module) -> nn.Module:
    """A plain model with the weights that a model with adapters computes with."""
    weights = products(model)
    with torch.no_grad():
        for name, value in weights.items():
            net.get_parameter(plain_name(name)).copy_(value)
    return net


def plain_name(name: str) -> str:
    return name.removeprefix(PREFIX).replace(".base_layer", "")


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)
