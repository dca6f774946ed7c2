"""One small problem for all trainers: a tiny GPT-2 that knows some old text and is tuned on new.

`plain_loop` is the reference that every trainer must agree with: AdamW with a linear schedule,
gradients accumulated over two batches of two sequences, and clipped."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from ewc import EWC
from ewc.memory import Curvature
from ewc.step_size import How

# Two of the six steps are clipped, so that the scale of the gradients matters.
STEPS, ACCUMULATED, BATCH, CLIP, RATE = 6, 2, 2, 1.5, 1e-2
EPSILON = 1e-6  # of AdamW: larger than the rounding of gradients that should be zero
TOKENS = ACCUMULATED * BATCH * 7  # with a label, in one step: the loss is their mean
_GENERATOR = torch.Generator().manual_seed(0)
OLD = torch.randint(32, (16, 8), generator=_GENERATOR)
NEW = torch.randint(32, (STEPS * ACCUMULATED * BATCH, 8), generator=_GENERATOR)
ROWS = [{"input_ids": row, "labels": row} for row in NEW]


def tiny_gpt2(dropout: float = 0.0) -> GPT2LMHeadModel:
    """Return a model with tied embeddings, always with the same weights."""
    config = GPT2Config(
        **{"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 32, "n_positions": 16},
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout),
        **{"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # so that a Trainer knows how many labels count
    return model


def memory_of(model: nn.Module, curvature: Curvature = "diagonal") -> EWC:
    """Return a memory of the old text at the model's present weights."""
    memory = EWC(model, strength=1000.0, curvature=curvature)
    memory.consolidate([{"input_ids": OLD, "labels": OLD}], task="old", kind="empirical")
    return memory


def two_memories(model: nn.Module) -> tuple[EWC, EWC]:
    """Return a memory of the old text, and a weaker one that pulls on all weights alike."""
    even = EWC(model, strength=7.0)
    even.anchor(0.1, task="even")
    return memory_of(model), even


def adamw(model: nn.Module, fused: bool = True) -> tuple[AdamW, LambdaLR]:
    """Return the optimizer and the schedule of all trainers."""
    options = {"lr": RATE, "eps": EPSILON, "weight_decay": 0.0, "fused": fused}
    optimizer = AdamW(model.parameters(), **options)
    return optimizer, LambdaLR(optimizer, linear)


def linear(step: int) -> float:
    return max(0.0, (STEPS - step) / STEPS)


def batches() -> DataLoader:
    """Return the new text in batches, in its order."""
    return DataLoader(ROWS, batch_size=BATCH)


def plain_loop(
    attach: Callable[[nn.Module, Optimizer], Callable[[], None] | None],
    *,
    model: GPT2LMHeadModel | None = None,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
    fused: bool = True,
) -> GPT2LMHeadModel:
    """Train on the new text without any trainer, and return the model.

    Args:
        attach: what to do with the model and the optimizer before training; it may return what to
            do at the end.
        model: the model to train, `tiny_gpt2()` by default.
        context: entered around each forward pass.
        fused: whether the optimizer is the fused one, which rounds differently.
    """
    model = (model or tiny_gpt2()).train()
    optimizer, schedule = adamw(model, fused)
    at_end = attach(model, optimizer)
    for number, batch in enumerate(batches(), start=1):
        with context():
            loss = model(**batch, num_items_in_batch=TOKENS).loss
        loss.backward()
        if number % ACCUMULATED == 0:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    if at_end is not None:
        at_end()
    return model


def with_memory(
    how: How = "proximal", curvature: Curvature = "diagonal"
) -> Callable[[nn.Module, Optimizer], Callable[[], None]]:
    """Return a function for `plain_loop` that attaches a memory of the old text, until the end."""
    return lambda model, optimizer: memory_of(model, curvature).attach(optimizer, how=how).remove


def distance(one: nn.Module, other: nn.Module) -> float:
    """Return the largest difference between two models' weights."""
    return max(
        float((a - b).abs().max().detach())
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


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
