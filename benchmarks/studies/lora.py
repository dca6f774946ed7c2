"""LoRA: what a memory keeps if it holds the factors A and B, or the weights W = W₀ + s B A.

A small GPT-2 learns the source of Python's standard library. Then adapters are trained on other
texts that come with Python, and two questions are asked of each memory:

    base    how much of the first text is kept while an adapter learns the language reference
    first   how much of the reference is kept while the same adapter learns names of characters

λ is chosen on one seed, by the sum of both losses on the validation parts: of one value per decade,
and one between the best two of these. The other seeds are reported, on the test parts. Runs are
stored one by one; started again, the benchmark goes on.

    python -m benchmarks.studies.lora --file docs/results/lora.jsonl
    python -m benchmarks.studies.lora --file docs/results/lora.jsonl --table
"""

import argparse
import json
import math
import sys
import time
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from torch import nn
from transformers.utils import logging

from benchmarks.measure import ResultRow, ResultTable, print_table
from benchmarks.studies.finetuning import Key, Results, Row
from ewc.diagnostics import EWCWarning
from ewc.integrations.peft import LoraEWC
from ewc.integrations.transformers import EWCCallback
from ewc.memory import EWC
from examples.finetune_lm import (
    QUICK,
    Settings,
    Text,
    batches,
    first_training,
    language_reference,
    library_source,
    loss_on,
    some,
    tokenized,
    train,
    untrained,
)

SETTINGS = Settings(
    layers=2,
    width=128,
    vocabulary=1024,
    block=64,
    steps=600,
    tuning_steps=150,
    tuning_rate=4e-3,
    every=4,
)
RANK = 8
SAMPLES = 512  # sequences for the Fisher
CHOOSING, REPORTED = 0, (1, 2, 3)  # seeds
EWC_VALUES = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
L2_VALUES = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
METHODS: Mapping[str, tuple[type[EWC], bool, Sequence[float]]] = {
    "L2 on A and B": (EWC, False, L2_VALUES),
    "EWC on A and B": (EWC, True, EWC_VALUES),
    "L2 on W": (LoraEWC, False, L2_VALUES),
    "EWC on W": (LoraEWC, True, EWC_VALUES),
}
QUESTIONS = {"base": ("library", "reference"), "first": ("reference", "characters")}
PLAIN = "plain LoRA"


@dataclass(frozen=True)
class Start:
    """What all runs of a seed start from: the texts, and for each question the model before it."""

    settings: Settings
    texts: Mapping[str, Text]
    untrained: nn.Module
    models: Mapping[str, nn.Module]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the tables."""
    options = _parser().parse_args(arguments)
    if not options.table:
        settings = QUICK if options.quick else SETTINGS
        shared = {**asdict(settings), "rank": RANK, "samples": SAMPLES}
        shared |= {"python": sys.version.split()[0], "torch": torch.__version__}
        del shared["seed"]
        logging.disable_progress_bar()
        run(settings, Results(options.file, shared))
    rows = [json.loads(line) for line in options.file.read_text().splitlines()[1:]]
    for question in QUESTIONS:
        print_table(summary(question, rows), Console(width=120))


def run(settings: Settings, results: Results) -> None:
    """Run what is missing: all strengths on one seed, then the best on the others."""
    texts = three_texts(settings)
    for seed in (CHOOSING, *REPORTED):
        start: Start | None = None
        for key in cells(seed, results):
            if key in results:
                continue
            start = start or prepared(replace(settings, seed=seed), texts)
            began = time.process_time()
            losses = measured(start, key[1], key[2])
            results.add(key, [losses])
            shown = "  ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
            print(f"seed {seed}  {key[1]} {key[2]:g}: {shown}", end="")
            print(f"  ({time.process_time() - began:.0f} s)", flush=True)


def cells(seed: int, results: Results) -> Iterator[Key]:
    """Yield all runs of a seed. Some follow from the results of those before."""
    yield seed, "untrained", 0.0
    for question in QUESTIONS:
        yield seed, f"{question}: before", 0.0
        yield seed, f"{question}: {PLAIN}", 0.0
        for method, (_, _, values) in METHODS.items():
            line = f"{question}: {method}"
            if seed == CHOOSING:
                yield from ((seed, line, value) for value in values)
                first, second, *_ = best(results.rows, line, values)
                yield seed, line, float(f"{math.sqrt(first * second):.3g}")
            else:
                yield seed, line, best(results.rows, line)[0]


def best(rows: Sequence[Row], line: str, among: Sequence[float] | None = None) -> list[float]:
    """Return the strengths by their sum of both validation losses, the smallest first."""
    kept, learned = QUESTIONS[line.partition(":")[0]]
    known = [row for row in rows if (row["seed"], row["method"]) == (CHOOSING, line)]
    known.sort(key=lambda row: row["points"][0][kept] + row["points"][0][learned])
    return [row["value"] for row in known if among is None or row["value"] in among]


def three_texts(settings: Settings) -> dict[str, Text]:
    """Return the source of the library, the language reference, and names of characters."""
    source = library_source()
    library = {name: source[name] for name in sorted(source)[:: settings.every]}
    documents = (library, language_reference(), character_names())
    names = ("library", "reference", "characters")
    return dict(zip(names, tokenized(settings, *documents), strict=True))


def character_names(size: int = 256) -> dict[str, str]:
    """Return the names of Unicode's characters, by ranges of code points.

    Those of CJK ideographs and Hangul syllables, which follow a rule, are left out.
    """
    by_range = {}
    for first in range(0, 0x20000, size):
        names = (unicodedata.name(chr(code), "") for code in range(first, first + size))
        lines = [n for n in names if n and not n.startswith(("CJK ", "HANGUL SYLLABLE"))]
        if lines:
            by_range[f"{first:05X}"] = "\n".join(lines)
    return by_range


def prepared(settings: Settings, texts: Mapping[str, Text]) -> Start:
    """Train the base model, and an adapter on the reference."""
    new = untrained(settings)
    model = with_adapter(first_training(settings, texts["library"]), settings.seed)
    models = {"base": model, "first": deepcopy(model)}
    tune(models["first"], texts["reference"], settings)
    return Start(settings, texts, new, models)


def with_adapter(model: nn.Module, seed: int) -> nn.Module:
    """Return the model with a new adapter on all matrices of the layers."""
    torch.manual_seed(seed)
    targets = ["c_attn", "c_proj", "c_fc"]
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets, fan_in_fan_out=True)
    base: Any = deepcopy(model)
    return get_peft_model(base, config)


def measured(start: Start, line: str, value: float) -> dict[str, float]:
    """Return the losses of one run: on each text, and on its test part."""
    if line == "untrained":
        return losses(start.untrained, start.texts)
    question, _, method = line.partition(": ")
    model = deepcopy(start.models[question])
    kept, learned = (start.texts[name] for name in QUESTIONS[question])
    if method != "before":
        memory = remembered(model, method, value, kept, start.settings) if value else None
        tune(model, learned, start.settings, memory)
    return losses(model, start.texts)


def remembered(
    model: nn.Module, method: str, strength: float, kept: Text, settings: Settings
) -> EWC:
    """Return the memory of a method, with the text that is to be kept."""
    kind, with_fisher, _ = METHODS[method]
    memory = kind(model, strength=strength)
    if not with_fisher:
        memory.anchor(1.0)
        return memory
    generator = torch.Generator().manual_seed(settings.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EWCWarning)  # the Fisher of A is zero where B is
        sample = some(kept.train, SAMPLES)
        memory.consolidate(batches(sample), kind="sampled", generator=generator)
    return memory


def tune(model: nn.Module, text: Text, settings: Settings, memory: EWC | None = None) -> None:
    """Train the adapter, with a memory or without."""
    callbacks = []
    if memory is not None:
        how = "gradient" if isinstance(memory, LoraEWC) else "proximal"
        callbacks.append(EWCCallback(memory, how=how))  # type: ignore[arg-type]
    steps, rate = settings.tuning_steps, settings.tuning_rate
    train(model, text.train, settings, steps=steps, rate=rate, callbacks=callbacks)


def losses(model: nn.Module, texts: Mapping[str, Text]) -> dict[str, float]:
    """Return the loss on each text: on the validation part, and on the test part."""
    by_text = {name: loss_on(model, text.validation) for name, text in texts.items()}
    return by_text | {f"{name} test": loss_on(model, text.test) for name, text in texts.items()}


def summary(question: str, rows: Sequence[Row]) -> ResultTable:
    """Return the table of a question: test losses of the reported seeds."""
    kept, learned = QUESTIONS[question]
    lines = {"untrained": "untrained", "before": f"{question}: before"}
    lines |= {name: f"{question}: {name}" for name in (PLAIN, *METHODS)}
    reported = [row for row in rows if row["seed"] in REPORTED]
    rows_shown = [_row(name, line, reported, kept, learned) for name, line in lines.items()]
    notes = (
        f"mean ± standard deviation of the seeds {REPORTED}, nats per token on the test parts",
        f"strengths of seed {CHOOSING}: the smallest sum of both losses on the validation parts",
    )
    return ResultTable(f"To keep: {kept}. To learn: {learned}", rows_shown, notes)


def _row(name: str, line: str, rows: Sequence[Row], kept: str, learned: str) -> ResultRow:
    own = [row for row in rows if row["method"] == line]
    strengths = sorted({f"{row['value']:g}" for row in own if row["value"]})
    columns: dict[str, str] = {"model": name, "strength": ", ".join(strengths)}
    points = [row["points"][0] for row in own]
    columns |= {
        f"loss on {text}": _spread([p[f"{text} test"] for p in points]) for text in (kept, learned)
    }
    return columns | {"sum": _spread([p[f"{kept} test"] + p[f"{learned} test"] for p in points])}


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.lora",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--file", type=Path, required=True, help="where results are stored")
    parser.add_argument("--table", action="store_true", help="only show what is there")
    parser.add_argument("--quick", action="store_true", help="a tiny model that learns little")
    return parser


if __name__ == "__main__":
    main()
