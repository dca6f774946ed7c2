"""Fine-tuning a language model: what is learned of the new text, and what is kept of the old.

Model and texts are those of `examples/finetune_lm.py`. EWC, an L2 anchor, LoRA, smaller learning
rates, early stopping and a little replay are measured over their values and several seeds. Results
are stored run by run; started again, the benchmark goes on where it stopped.

    python -m benchmarks.studies.finetuning --folder runs/finetuning
    python -m benchmarks.studies.finetuning --folder runs/finetuning --methods ewc --kind empirical
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from benchmarks.measure import print_table
from benchmarks.studies.frontier import draw, summary, tunings
from ewc.fisher import fisher_diagonal
from ewc.fisher.likelihood import Kind, Positions
from ewc.integrations.transformers import EWCCallback
from ewc.memory import EWC
from examples.finetune_lm import (
    QUICK,
    Settings,
    Text,
    batches,
    loss_on,
    pretrained,
    some,
    texts,
    train,
    untrained,
)

Row = dict[str, Any]
Key = tuple[int, str, float]  # seed, line and value


class Results:
    """The rows of a file, with those that are added.

    Args:
        file: where the rows are.
        settings: what all of them share; the file must have been made with the same.
    """

    def __init__(self, file: Path, settings: Mapping[str, Any]) -> None:
        self.file = file
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": dict(settings)})
        header, *_ = _read(file) or [{}]
        if header.get("settings") != dict(settings):
            raise SystemExit(
                f"expected results of {dict(settings)} in {file}, found {header.get('settings')}: "
                "give another folder"
            )

    @property
    def rows(self) -> list[Row]:
        """The rows that are in the file now; two processes may share it."""
        return _read(self.file)[1:]

    def __contains__(self, key: Key) -> bool:
        return any((row["seed"], row["method"], row["value"]) == key for row in self.rows)

    def add(self, key: Key, points: list[dict[str, float]]) -> None:
        """Append the losses of a run."""
        seed, method, value = key
        self._append({"seed": seed, "method": method, "value": value, "points": points})

    def _append(self, row: Row) -> None:
        with self.file.open("a+b") as file:
            if file.tell() and not _ends_with_newline(self.file):
                file.write(b"\n")  # after a line that was cut off
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")


def _ends_with_newline(file: Path) -> bool:
    return file.read_bytes().endswith(b"\n")


def _read(file: Path) -> list[Row]:
    """Return the rows of a file without lines that were cut off when a run was stopped."""
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


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


Options = TypeVar("Options", Settings, FisherOptions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print the tables and draw the figure."""
    options = _parser().parse_args(arguments)
    settings = _changed(QUICK if options.quick else Settings(), options)
    fisher = _changed(FisherOptions(), options)
    shared = {**asdict(settings), "python": sys.version, "torch": torch.__version__}
    del shared["seed"]
    results = Results(options.folder / "results.jsonl", shared)
    logging.disable_progress_bar()
    if not options.table:
        for seed in options.seeds:
            cells = [cell for cell in _cells(seed, options, fisher) if cell not in results]
            if cells:
                run(replace(settings, seed=seed), fisher, cells, results, options.folder)
    found = tunings(results.rows)
    if not found:
        raise SystemExit("nothing to show yet: run 'plain' of at least one seed")
    for table in summary(found):
        print_table(table, Console(width=None if Console().is_terminal else 140))
    print("figure:", draw(found, options.folder / "frontier.png"))


def run(
    settings: Settings, options: FisherOptions, cells: list[Key], results: Results, folder: Path
) -> None:
    """Train and measure the missing cells of one seed."""
    old, new = texts(settings)
    model = pretrained(settings, old, folder / f"pretrained-{settings.seed}")
    needs_fisher = any(line.startswith(("ewc", "default")) for _, line, _ in cells)
    fisher = fisher_of(model, old.train, options, settings.seed) if needs_fisher else {}
    start = Start(model, old, new, settings, options, fisher)
    for cell in cells:
        seed, line, value = cell
        began = time.perf_counter()
        if line == "untrained":
            points = [losses(untrained(settings), start)]
        elif line == "before":
            points = [losses(model, start)]
        else:
            points = tune(start, line.partition(" ")[0], value)
        results.add(cell, points)
        last = points[-1]
        print(
            f"seed {seed}  {line} {value:g}: new {last['new']:.3f}, old {last['old']:.3f} "
            f"(validation), {time.perf_counter() - began:.0f} s",
            flush=True,
        )


def _cells(seed: int, options: argparse.Namespace, fisher: FisherOptions) -> Iterator[Key]:
    """Yield all runs of a seed. Lines of another Fisher than the default are named after it."""
    yield seed, "untrained", 0.0
    yield seed, "before", 0.0
    yield seed, "plain", 0.0
    for method in options.methods:
        named = method in ("ewc", "default") and fisher.label()
        for value in options.values or VALUES[method]:
            yield seed, f"{method} {fisher.label()}" if named else method, value


def _changed(usual: Options, options: argparse.Namespace) -> Options:
    """Return the settings with what the command line changes."""
    named = {field.name: getattr(options, field.name, None) for field in fields(usual)}
    return replace(usual, **{name: value for name, value in named.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.finetuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="where results are stored")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="*", choices=VALUES, default=list(VALUES))
    parser.add_argument("--values", type=float, nargs="+", help="in place of the usual ones")
    parser.add_argument("--table", action="store_true", help="only show what is there")
    parser.add_argument("--quick", action="store_true", help="a tiny model that learns little")
    for group in (Settings(), FisherOptions()):
        for name, value in asdict(group).items():
            if name != "seed":
                parser.add_argument(
                    f"--{name.replace('_', '-')}", type=type(value), help=f"default: {value!r}"
                )
    return parser


if __name__ == "__main__":
    main()
