"""What two ranks do in a test: a `Trainer` with DistributedDataParallel, factors of adapters."""

import os
from pathlib import Path
from typing import Any

from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainingArguments

from ewc import EWC
from ewc.integrations.peft import LoraEWC
from ewc.integrations.transformers import EWCCallback
from support.trainers import (
    ACCUMULATED,
    CLIP,
    EPSILON,
    OLD,
    RATE,
    ROWS,
    STEPS,
    data,
    small_net,
    tiny_gpt2,
    weights,
    with_lora,
)


def tune(folder: Path) -> dict[str, Any]:
    """Train a part of each step's rows in each rank; each consolidates a part of the old text."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }  # nobody asks: the group is there
    model = tiny_gpt2()
    memory = EWC(model, strength=1000.0, curvature="kronecker", process_group="world")
    part = OLD[:6] if rank == 0 else OLD[6:]
    memory.consolidate([{"input_ids": part, "labels": part}], task="old", kind="empirical")
    args = TrainingArguments(
        output_dir=str(folder / "run"),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=ACCUMULATED,
        max_steps=STEPS,
        max_grad_norm=CLIP,
        learning_rate=RATE,
        adam_epsilon=EPSILON,
        train_sampling_strategy="sequential",
        save_strategy="no",
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )
    trainer = Trainer(model, args, train_dataset=ROWS, callbacks=[EWCCallback(memory)])
    trainer.train()
    return {
        "weights": weights(model),
        "world": args.world_size,
        "wrapped": isinstance(trainer.model_wrapped, DistributedDataParallel),
        "rises": [row["ewc_estimated_rise"] for row in trainer.state.log_history if "loss" in row],
        "adapters": adapters(rank),
    }


def adapters(rank: int) -> dict[str, Any]:
    """The factors of adapters, of a part of the samples in each rank."""
    model = with_lora(small_net())
    memory = LoraEWC(model, curvature="kronecker", process_group="world")
    x, y = data()
    part = slice(0, 2) if rank == 0 else slice(2, None)
    fisher = memory.consolidate([(x[part], y[part])], kind="empirical", max_samples=6)
    return {name: (own.inputs, own.outputs, own.at_zero) for name, own in fisher.factors.items()}
