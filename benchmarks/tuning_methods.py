"""Ways to fine-tune a language model, each with one number that trades the old text for the new.

All of them use the `Trainer` of Transformers with the same data, order and schedule.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ewc.fisher import fisher_diagonal
from ewc.fisher.likelihood import Kind, Positions
from ewc.integrations.transformers import EWCCallback
from ewc.memory import EWC
from examples.finetune_lm import Settings, Text, batches, loss_on, some, train

# By method, the values that are measured: a strength, a rank, a share. The default budget has none.
VALUES: dict[str, Sequence[float]] = {
    "default": (0.0,),
    "ewc": (10.0, 3.0, 30.0, 100.0),
    "l2": (0.03, 0.1, 0.01, 0.3),
    "rate": (0.25, 0.1),
    "lora": (2.0, 32.0),
    "replay": (0.05, 0.2),
}
LORA_RATE = 4.0  # adapters start at zero and need larger steps: a multiple of the learning rate
POINTS_ALONG = 10  # losses that are measured during plain training, for early stopping

Losses = dict[str, float]


@dataclass(frozen=True)
class FisherOptions:
    """Which Fisher EWC uses; the defaults are those of the example.

    Args:
        kind: `"sampled"` or `"empirical"`.
        samples: sequences of the old text.
        positions: `"mean"` (per token) or `"sum"` (per sequence): the scale, see `EWC.consolidate`.
        tokens: `"all"` squares the gradient of a whole sequence. `"one"` squares that of a single
            token with its context, one per sequence.
        floor: fraction of each parameter's mean Fisher that is added to all of its entries.
        parameters: patterns of the protected parameters, such as `"!*.wte.*"`, by commas; all if
            empty.
    """

    kind: Kind = "sampled"
    samples: int = 1024
    positions: Positions = "mean"
    tokens: str = "all"
    floor: float = 0.0
    parameters: str = ""

    def label(self) -> str:
        """Return what differs from the defaults, to tell lines of a figure apart."""
        usual = FisherOptions()
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(usual, k)]
        return " ".join(changed)

    def selection(self) -> list[str] | None:
        """Return the patterns of the protected parameters."""
        return self.parameters.split(",") if self.parameters else None


@dataclass(frozen=True)
class Start:
    """What all runs of a seed start from: the model, both texts, and the Fisher of the old one."""

    model: nn.Module
    old: Text
    new: Text
    settings: Settings
    options: FisherOptions
    fisher: dict[str, Tensor]


def fisher_of(
    model: nn.Module, text: Tensor, options: FisherOptions, seed: int
) -> dict[str, Tensor]:
    """Return the Fisher of the old text."""
    if options.tokens not in ("all", "one"):
        raise ValueError(f"expected tokens='all' or 'one', got {options.tokens!r}")
    return fisher_diagonal(
        model,
        counted(some(text, options.samples), options.tokens == "one", seed),
        kind=options.kind,
        positions=options.positions,
        parameters=options.selection(),
        generator=torch.Generator().manual_seed(seed),
    )


def counted(blocks: Tensor, one: bool, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yield batches in which all tokens have labels, or one random token of each sequence."""
    generator = torch.Generator().manual_seed(seed)
    for batch in batches(blocks):
        if one:
            rows = batch["input_ids"]
            # Not the first token: nothing predicts it.
            place = torch.randint(1, rows.shape[1], (len(rows), 1), generator=generator)
            labels = torch.full_like(rows, -100).scatter(1, place, rows.gather(1, place))
            batch = {"input_ids": rows, "labels": labels}
        yield batch


def tune(start: Start, method: str, value: float) -> list[Losses]:
    """Fine-tune a copy of the model, and return its losses at the end.

    Plain training is measured along the way too, for early stopping.
    """
    return METHODS[method](start, value)


def plain(start: Start, value: float) -> list[Losses]:
    """Train as usual; `value` means nothing."""
    model = deepcopy(start.model)
    along = LossesAlong(start)
    _train(start, model, callbacks=[along])
    return along.losses


def smaller_rate(start: Start, value: float) -> list[Losses]:
    """Train with a learning rate that is multiplied by `value`."""
    model = deepcopy(start.model)
    _train(start, model, rate=value)
    return [losses(model, start)]


def ewc(start: Start, value: float) -> list[Losses]:
    """Train with EWC of strength `value`."""
    return _with_fisher(start, strength=value)


def default(start: Start, value: float) -> list[Losses]:
    """Train with EWC as it comes, with no strength to search for; `value` means nothing."""
    return _with_fisher(start)


def l2(start: Start, value: float) -> list[Losses]:
    """Train with the same pull of strength `value` on all weights, as if all were as important."""
    model = deepcopy(start.model)
    memory = EWC(model, strength=value)
    memory.anchor(1.0)
    _train(start, model, callbacks=[EWCCallback(memory)])
    return [losses(model, start)]


def lora(start: Start, value: float) -> list[Losses]:
    """Train adapters of rank `value` on all matrices of the layers."""
    rank = int(value)
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules=["c_attn", "c_proj", "c_fc"],
        fan_in_fan_out=True,
    )
    torch.manual_seed(start.settings.seed)
    model: Any = get_peft_model(deepcopy(start.model), config)
    _train(start, model, rate=LORA_RATE)
    return [losses(model, start)]


def replay(start: Start, value: float) -> list[Losses]:
    """Mix old text in, a share `value` of all sequences; as many new ones are seen as otherwise."""
    model = deepcopy(start.model)
    count = round(len(start.new.train) * value / (1 - value))
    mixed = torch.cat([start.new.train, some(start.old.train, max(1, count))])
    _train(start, model, blocks=mixed, longer=1 / (1 - value))
    return [losses(model, start)]


METHODS: dict[str, Callable[[Start, float], list[Losses]]] = {
    **{"plain": plain, "ewc": ewc, "default": default, "l2": l2},
    **{"lora": lora, "rate": smaller_rate, "replay": replay},
}


def losses(model: nn.Module, start: Start) -> Losses:
    """Return the losses on both texts: `new`, `old` to choose with, `new_test`, `old_test`."""
    parts = {
        "new": start.new.validation,
        "old": start.old.validation,
        "new_test": start.new.test,
        "old_test": start.old.test,
    }
    return {name: loss_on(model, blocks) for name, blocks in parts.items()}


class LossesAlong(TrainerCallback):
    """Measures the losses several times during training, more often in the beginning."""

    def __init__(self, start: Start) -> None:
        self.losses: list[Losses] = []
        self._start = start
        steps, points = start.settings.tuning_steps, POINTS_ALONG
        self._at = {max(1, round(steps * (n / points) ** 2)) for n in range(1, points + 1)}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure, if it is time to."""
        if state.global_step in self._at:
            self.losses.append(losses(kwargs["model"], self._start) | {"step": state.global_step})
            kwargs["model"].train()


def _with_fisher(start: Start, **strength: Any) -> list[Losses]:
    model = deepcopy(start.model)
    memory = EWC(model, parameters=start.options.selection(), **strength)
    memory.consolidate(start.fisher, task="old", floor=start.options.floor)
    _train(start, model, callbacks=[EWCCallback(memory)])
    return [losses(model, start)]


def _train(
    start: Start,
    model: nn.Module,
    *,
    blocks: Tensor | None = None,
    rate: float = 1.0,
    longer: float = 1.0,
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Fine-tune, with multiples of the learning rate and of the number of steps."""
    settings = start.settings
    train(
        model,
        start.new.train if blocks is None else blocks,
        settings,
        steps=round(settings.tuning_steps * longer),
        rate=settings.tuning_rate * rate,
        callbacks=callbacks,
    )
