"""Fine-tuning a language model: what is learned of the new text, and what is kept of the old.

Model and texts are those of `examples/finetune_lm.py`, or another pair. EWC and its rivals are
measured over the values of the one number that each has, and over several seeds. Results are stored
run by run; started again, the benchmark goes on where it stopped.

    python -m benchmarks.studies.finetuning --folder runs/finetuning
    python -m benchmarks.studies.finetuning --folder runs/finetuning --methods ewc --kind empirical
    python -m benchmarks.studies.finetuning --folder runs/manuals --pair manuals
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from benchmarks.measure import print_table
from benchmarks.studies import pairs
from benchmarks.studies.frontier import draw, summary, tunings
from benchmarks.studies.pairs import PAIRS
from ewc.fisher import KroneckerFisher, fisher_diagonal, fisher_kronecker
from ewc.fisher.likelihood import IGNORE, Kind, Positions
from ewc.integrations.transformers import EWCCallback, own_text
from ewc.memory import EWC, Curvature
from examples.finetune_lm import (
    QUICK,
    Settings,
    Text,
    batches,
    loss_on,
    pretrained,
    some,
    train,
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


# By method, the values that are measured, the most telling first: a strength, a rank, a share. The
# default budget has none.
VALUES: dict[str, Sequence[float]] = {
    "kronecker-default": (0.0,),
    "kronecker": (10.0, 3.0, 30.0),
    "default": (0.0,),
    "ewc": (30.0, 100.0, 10.0),
    "own": (10.0, 3.0, 30.0),
    "replay": (0.05, 0.2, 0.01),
    "l2": (0.1, 0.03, 0.3),
    "averaging": (0.3, 0.5, 0.7, 0.8, 0.9),
    "own-averaging": (0.3, 0.5, 0.7, 0.8, 0.9),
    "kl": (1.0, 3.0),
    "self-replay": (0.2,),
    "kronecker-replay": (3.0, 10.0),
    "own-default": (0.0,),
    "few": (10.0,),
    "unrelated": (10.0,),
    "lora": (32.0,),
    "rate": (0.25,),
}
LORA_RATE = 4.0  # adapters start at zero and need larger steps: a multiple of the learning rate
POINTS_ALONG = 6  # losses that are measured during plain training, for early stopping
AVERAGED = 3.0  # λ of the training whose weights are averaged with those before it
A_LITTLE = 0.01  # of old text, beside a memory
FEW = 64  # sequences of old text, if there are few

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
    samples: int = 512
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


Fisher = dict[str, Tensor] | KroneckerFisher
FISHERS: dict[Curvature, Callable[..., Fisher]] = {
    "diagonal": fisher_diagonal,
    "kronecker": fisher_kronecker,
}
# By method, the curvature of its memory, and the text that its Fisher is of.
MEMORIES: dict[str, tuple[Curvature, str]] = {
    "ewc": ("diagonal", "old"),
    "kronecker": ("kronecker", "old"),
    "own": ("kronecker", "own"),
    "few": ("kronecker", "few"),
    "unrelated": ("kronecker", "unrelated"),
}


@dataclass(frozen=True)
class Start:
    """What all runs of a seed start from: the model and the texts.

    `made` keeps what several runs need, and how many seconds it took: the model's own text,
    Fishers, and weights after training.
    """

    model: nn.Module
    old: Text
    new: Text
    unrelated: Text
    settings: Settings
    options: FisherOptions
    made: dict[str, tuple[Any, float]] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when it was first called under this name."""
        if name not in self.made:
            began = time.process_time()
            made = make()
            self.made[name] = made, time.process_time() - began
        return self.made[name][0]

    def text(self, name: str) -> Tensor:
        """Return the text that a Fisher is of."""
        samples, seed = self.options.samples, self.settings.seed
        if name == "own":
            said: Tensor = self.once(
                "own", lambda: own_blocks(self.model, self.old.train, samples, seed)
            )
            return said
        texts = {"old": self.old, "few": self.old, "unrelated": self.unrelated}
        return some(texts[name].train, min(FEW, samples) if name == "few" else samples)

    def fisher(self, memory: str) -> Fisher:
        """Return the Fisher of one of the `MEMORIES`."""
        curvature, name = MEMORIES[memory]
        text, seed = self.text(name), self.settings.seed
        fisher: Fisher = self.once(
            f"fisher of {memory}",
            lambda: fisher_of(self.model, text, self.options, seed, curvature),
        )
        return fisher


def own_blocks(model: nn.Module, like: Tensor, count: int, seed: int) -> Tensor:
    """Return sequences that the model says itself; those that it ended early are left out."""
    generator = torch.Generator().manual_seed(seed)
    said = own_text(model, sequences=count, length=like.shape[1], generator=generator)
    whole = [rows["input_ids"][(rows["labels"] != IGNORE).all(1)] for rows in said]
    return torch.cat(whole)


def fisher_of(
    model: nn.Module,
    text: Tensor,
    options: FisherOptions,
    seed: int,
    curvature: Curvature = "diagonal",
) -> Fisher:
    """Return the Fisher of a text."""
    if options.tokens not in ("all", "one"):
        raise ValueError(f"expected tokens='all' or 'one', got {options.tokens!r}")
    return FISHERS[curvature](
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
    along = LossesAlong(start)
    model, seconds = _trained(start, callbacks=[along])
    start.made["tuned plain"] = _weights(model), seconds - along.seconds
    along.losses[-1]["seconds"] = seconds - along.seconds
    return along.losses


def smaller_rate(start: Start, value: float) -> list[Losses]:
    """Train with a learning rate that is multiplied by `value`."""
    return _measured(start, *_trained(start, rate=value))


def held(memory: str, start: Start, value: float) -> list[Losses]:
    """Train with one of the `MEMORIES`, of strength `value`; 0 is the default budget."""
    model = deepcopy(start.model)
    ewc = _memory(start, model, memory, value)
    found = _measured(start, *_trained(start, model, callbacks=[EWCCallback(ewc)]))
    start.made[f"tuned {memory} {value:g}"] = _weights(model), found[-1]["seconds"]
    seconds = start.made[f"fisher of {memory}"][1]
    if MEMORIES[memory][1] == "own":
        seconds += start.made["own"][1]
    return [found[-1] | {"fisher seconds": seconds, "bytes": _bytes(ewc)}]


def with_replay(memory: str, start: Start, value: float) -> list[Losses]:
    """Train with one of the `MEMORIES`, of strength `value`, and a little old text."""
    model = deepcopy(start.model)
    callback = EWCCallback(_memory(start, model, memory, value))
    blocks, longer = _mixed(start, start.old.train, A_LITTLE)
    return _measured(
        start, *_trained(start, model, blocks=blocks, longer=longer, callbacks=[callback])
    )


def l2(start: Start, value: float) -> list[Losses]:
    """Train with the same pull of strength `value` on all weights, as if all were as important."""
    model = deepcopy(start.model)
    memory = EWC(model, strength=value)
    memory.anchor(1.0)
    return _measured(start, *_trained(start, model, callbacks=[EWCCallback(memory)]))


def lora(start: Start, value: float) -> list[Losses]:
    """Train adapters of rank `value` on all matrices of the layers."""
    rank, config = int(value), start.model.config
    options = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules="all-linear",
        fan_in_fan_out=getattr(config, "model_type", "") == "gpt2",
        task_type="CAUSAL_LM",  # the output layer is none of its layers
    )
    torch.manual_seed(start.settings.seed)
    model: Any = get_peft_model(deepcopy(start.model), options)
    return _measured(start, *_trained(start, model, rate=LORA_RATE))


def replay(start: Start, value: float) -> list[Losses]:
    """Mix old text in, a share `value` of all sequences; as many new ones are seen as otherwise."""
    blocks, longer = _mixed(start, start.old.train, value)
    return _measured(start, *_trained(start, blocks=blocks, longer=longer))


def self_replay(start: Start, value: float) -> list[Losses]:
    """Mix text in that the model says itself, a share `value`, as with replay."""
    blocks, longer = _mixed(start, start.text("own"), value)
    return _measured(start, *_trained(start, blocks=blocks, longer=longer))


def averaging(memory: str, start: Start, value: float) -> list[Losses]:
    """Average weights after training with those before, `value` of the way (WiSE-FT).

    Args:
        memory: one of the `MEMORIES` that pulls while training, or `"plain"`.
        start: what the runs start from.
        value: how far from the weights before.
    """
    name = f"tuned {memory}" if memory == "plain" else f"tuned {memory} {AVERAGED:g}"
    if name not in start.made:
        plain(start, 0.0) if memory == "plain" else held(memory, start, AVERAGED)
    weights, seconds = start.made[name]
    model = deepcopy(start.model)
    with torch.no_grad():
        for each, own in model.named_parameters():
            own.lerp_(weights[each], value)
    return _measured(start, model, seconds)


class NearBase(nn.Module):
    """A model whose loss also has β KL(base ‖ model), of the predictions on the same text."""

    def __init__(self, model: nn.Module, base: nn.Module, beta: float) -> None:
        super().__init__()
        self.model, self.base, self.beta = model, base.requires_grad_(False), beta

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        found = self.model(input_ids=input_ids, labels=labels)
        with torch.no_grad():
            before = log_softmax(self.base(input_ids=input_ids).logits, -1).flatten(0, 1)
        now = log_softmax(found.logits, -1).flatten(0, 1)
        apart = kl_div(now, before, log_target=True, reduction="batchmean")
        return {"loss": found.loss + self.beta * apart}


def near_base(start: Start, value: float) -> list[Losses]:
    """Train with `value` times the divergence from the first predictions on the new text."""
    model = deepcopy(start.model)
    _, seconds = _trained(start, NearBase(model, deepcopy(start.model), value))
    return _measured(start, model, seconds)


METHODS: dict[str, Callable[[Start, float], list[Losses]]] = {
    **{"plain": plain, "l2": l2, "lora": lora, "rate": smaller_rate, "kl": near_base},
    **{"replay": replay, "self-replay": self_replay},
    **{memory: partial(held, memory) for memory in MEMORIES},
    **{"default": partial(held, "ewc"), "kronecker-default": partial(held, "kronecker")},
    **{"own-default": partial(held, "own"), "kronecker-replay": partial(with_replay, "kronecker")},
    **{"averaging": partial(averaging, "plain"), "own-averaging": partial(averaging, "own")},
}
OF_A_FISHER = ("ewc", "default", "kronecker", "own", "few", "unrelated")  # how its lines begin


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
        self.seconds = 0.0  # that were spent on it
        self._start = start
        steps, points = start.settings.tuning_steps, POINTS_ALONG
        self._at = {max(1, round(steps * (n / points) ** 2)) for n in range(1, points + 1)}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure, if it is time to."""
        if state.global_step in self._at:
            began = time.process_time()
            self.losses.append(losses(kwargs["model"], self._start) | {"step": state.global_step})
            self.seconds += time.process_time() - began
            kwargs["model"].train()


def _memory(start: Start, model: nn.Module, memory: str, value: float) -> EWC:
    """Return a memory of what the model knows; a `value` of 0 is the default budget."""
    fisher = start.fisher(memory)
    ewc = EWC(
        model,
        strength=value or None,
        curvature=MEMORIES[memory][0],
        parameters=start.options.selection(),
    )
    ewc.consolidate(fisher, task="old", floor=start.options.floor)
    return ewc


def _bytes(memory: EWC) -> float:
    """Return the bytes that a memory keeps, per parameter of its model."""
    size = sum(tensor.nbytes for tensor in memory.state_dict().values())
    return size / sum(parameter.numel() for parameter in memory.model.parameters())


def _mixed(start: Start, text: Tensor, share: float) -> tuple[Tensor, float]:
    """Return the new text with a share of another, and how much longer it takes to see it all."""
    count = round(len(start.new.train) * share / (1 - share))
    return torch.cat([start.new.train, some(text, max(1, count))]), 1 / (1 - share)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def _measured(start: Start, model: nn.Module, seconds: float) -> list[Losses]:
    """Return the losses of a model, and the processor's seconds that its training took."""
    return [losses(model, start) | {"seconds": seconds}]


def _trained(
    start: Start,
    model: nn.Module | None = None,
    *,
    blocks: Tensor | None = None,
    rate: float = 1.0,
    longer: float = 1.0,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[nn.Module, float]:
    """Fine-tune, with multiples of the learning rate and of the number of steps.

    Returns the model, by default a copy of that of the start, and the processor's seconds.
    """
    settings = start.settings
    model = deepcopy(start.model) if model is None else model
    began = time.process_time()
    train(
        model,
        start.new.train if blocks is None else blocks,
        settings,
        steps=round(settings.tuning_steps * longer),
        rate=settings.tuning_rate * rate,
        callbacks=callbacks,
    )
    return model, time.process_time() - began


Options = TypeVar("Options", Settings, FisherOptions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print the tables and draw the figure."""
    options = _parser().parse_args(arguments)
    settings = _changed(QUICK if options.quick else Settings(), options)
    fisher = _changed(FisherOptions(), options)
    shared = {**asdict(settings), "pair": options.pair}
    shared |= {"python": sys.version, "torch": torch.__version__}
    if options.manuals:
        pairs.MANUALS = options.manuals
    del shared["seed"]
    results = Results(options.folder / "results.jsonl", shared)
    logging.disable_progress_bar()
    if not options.table:
        for seed in options.seeds:
            cells = [cell for cell in _cells(seed, options, fisher) if cell not in results]
            if cells:
                run(replace(settings, seed=seed), fisher, cells, results, options)
    found = tunings(results.rows)
    if not found:
        raise SystemExit("nothing to show yet: run 'plain' of at least one seed")
    for table in summary(found):
        print_table(table, Console(width=None if Console().is_terminal else 140))
    print("figure:", draw(found, options.folder / "figures" / f"{options.pair}.svg"))


def run(
    settings: Settings,
    fisher: FisherOptions,
    cells: list[Key],
    results: Results,
    options: argparse.Namespace,
) -> None:
    """Train and measure the missing cells of one seed."""
    pair = PAIRS[options.pair]
    old, new, unrelated = pair.texts(settings)
    place = (options.bases or options.folder) / f"pretrained-{settings.seed}"
    model = pretrained(settings, old, place, pair.untrained)
    start = Start(model, old, new, unrelated, settings, fisher)
    for cell in cells:
        seed, line, value = cell
        began = time.perf_counter()
        if line == "untrained":
            points = [losses(pair.untrained(settings), start)]
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
    for method, values in options.methods:
        named = method.startswith(OF_A_FISHER) and fisher.label()
        for value in values:
            yield seed, f"{method} {fisher.label()}" if named else method, value


def _changed(usual: Options, options: argparse.Namespace) -> Options:
    """Return the settings with what the command line changes."""
    named = {field.name: getattr(options, field.name, None) for field in fields(usual)}
    return replace(usual, **{name: value for name, value in named.items() if value is not None})


def _method(argument: str) -> tuple[str, Sequence[float]]:
    """Return a method and its values from an argument such as `ewc` or `ewc=10,30`."""
    name, _, values = argument.partition("=")
    if name not in VALUES:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(VALUES)}, got {name!r}")
    return name, [float(value) for value in values.split(",")] if values else VALUES[name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.finetuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="where results are stored")
    parser.add_argument("--pair", choices=PAIRS, default="reference", help="default: %(default)s")
    parser.add_argument("--manuals", type=Path, help=f"of manual pages; default: {pairs.MANUALS}")
    parser.add_argument("--bases", type=Path, help="where first trainings are kept, if elsewhere")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--methods",
        nargs="*",
        type=_method,
        default=list(VALUES.items()),
        metavar="METHOD[=VALUE,...]",
        help=f"of {', '.join(VALUES)}; by default all, with their usual values",
    )
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
