"""The command that makes a memory file of a language model, once for everyone.

    python -m ewc.integrations.transformers MODEL_DIR --own-text --curvature kronecker --out DIR

The Fisher is a sum over parts of a few batches each. What was summed is written beside from time to
time, and each part has random numbers of its own, so that a run that was killed goes on and ends
with the same file, bit for bit. No more than one part's text is in memory.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ewc.fisher import KroneckerFactors, KroneckerFisher, fisher_diagonal, fisher_kronecker
from ewc.fisher.likelihood import IGNORE
from ewc.integrations.transformers import (
    Batch,
    Piece,
    check_length,
    pieces_of,
    read_pieces,
    say,
)
from ewc.memory import EWC, Curvature
from ewc.storage import (
    CONFIG,
    PrecisionType,
    fingerprint_of,
    read_config,
    read_tensors,
    write_tensors,
)

try:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "ewc.integrations.transformers needs the extra 'transformers': "
        "pip install 'ewc[transformers]'"
    ) from error

PARTIAL = "partial.safetensors"
BATCHES = 4  # in a part
SAVING = 0.05  # of the time may be spent on writing what was summed

EXAMPLES = """examples:
  # a model that says itself what it knows: no old data is needed
  python -m ewc.integrations.transformers my-model --own-text --curvature kronecker --out my-memory

  # from text like that of its first training
  python -m ewc.integrations.transformers my-model --text wiki/*.txt --curvature kronecker \\
      --out my-memory

Then fine-tune with Trainer(..., callbacks=[EWCCallback("my-memory")]). A run that was stopped goes
on with the same command."""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of the command."""
    made = argparse.ArgumentParser(
        prog="python -m ewc.integrations.transformers",
        description="Make a memory of what a language model knows, to fine-tune it with less "
        "forgetting.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "model",
        metavar="MODEL_DIR",
        help="a causal language model: a directory of save_pretrained, or a name on the Hub",
    )
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--text", nargs="+", type=Path, metavar="FILE", help="text files in UTF-8, of what it knows"
    )
    source.add_argument(
        "--own-text", action="store_true", help="let the model say itself what it knows"
    )
    add("--out", required=True, type=Path, metavar="DIR", help="the directory of the memory")
    add(
        "--curvature",
        choices=get_args(Curvature),
        default="diagonal",
        help="one precision per weight, or two factors per layer (default: %(default)s)",
    )
    add("--sequences", type=int, default=512, metavar="N", help="how many (default: %(default)s)")
    add(
        "--length",
        type=int,
        default=256,
        metavar="N",
        help="tokens of a sequence, at most (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=int,
        default=8,
        metavar="N",
        help="sequences at a time, which decides the memory needed (default: %(default)s)",
    )
    add(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="of the model's own text (default: %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: %(default)s)")
    add("--task", default="base model", metavar="NAME", help="its name (default: %(default)s)")
    add("--name", metavar="NAME", help="the model's name for the card, as on the Hub: 'us/small'")
    add(
        "--precision",
        choices=get_args(PrecisionType),
        default="full",
        help="how the file stores it (default: %(default)s)",
    )
    add(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="that the model is run in (default: that of its file)",
    )
    add("--device", metavar="NAME", help="(default: cuda if there is one)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parser().parse_args(arguments)
    try:
        made = make(options)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        print(f"error: {first_line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        return 130
    print(made)
    return 0


def make(options: argparse.Namespace) -> str:
    """Make the memory, and return a line about it."""
    for name in ("sequences", "batch_size"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if not options.temperature > 0:
        raise ValueError("--temperature must be above 0")
    for file in options.text or ():
        if not file.is_file():
            raise FileNotFoundError(f"there is no text file {file}")
    model, tokenizer = load(options)
    check_length(model, options.length)
    run = Run(options, model, tokenizer)
    settings = run.settings()
    out: Path = options.out
    if (out / CONFIG).is_file():
        if read_config(out)["card"].get("settings") != settings:
            raise ValueError(f"{out} has a memory that was made otherwise: choose another --out")
        return f"{out} is there already, made with the same options"
    out.mkdir(parents=True, exist_ok=True)
    sums = FisherSum.of_file(out / PARTIAL, settings)
    with logging.tqdm(
        total=run.sequences, initial=run.sequences_before(sums.parts), unit="sequence"
    ) as bar:
        for part, batches in run.parts(sums.parts):
            fisher = run.fisher(part, batches)
            sums.add(fisher, batches)
            sums.save_if_due(out / PARTIAL, settings)
            bar.update(run.sequences_before(part + 1) - run.sequences_before(part))
    memory = EWC(model, curvature=options.curvature)
    memory.consolidate(sums.mean(options.curvature), task=options.task)
    source = "text of the model itself" if options.own_text else f"{len(options.text)} text files"
    card = {"data": source, "kind": "sampled", "samples": sums.samples, "settings": settings}
    if options.name:
        card["model"] = options.name
    memory.save_pretrained(out, precision=options.precision, card=card)
    (out / PARTIAL).unlink(missing_ok=True)
    return f"{out} has the memory of {sums.samples} sequences: EWCCallback({str(out)!r}) loads it"


def load(options: argparse.Namespace) -> tuple[nn.Module, Any]:
    """Return the model, and its tokenizer if it has one."""
    place = Path(options.model)
    on_hub = re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", options.model)
    if not place.is_dir() and not on_hub:
        raise FileNotFoundError(f"there is no model directory {place}")
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model: nn.Module = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype)
    model.to(device)
    try:  # a directory without one can give a tokenizer that knows no word
        if place.is_dir() and not any(place.glob("*token*")):
            raise FileNotFoundError(f"there is no tokenizer in {place}")
        return model, AutoTokenizer.from_pretrained(options.model)
    except (OSError, ValueError, KeyError) as error:
        if not options.own_text:
            raise ValueError(
                f"expected a tokenizer in {options.model}, which --text needs: save one there "
                "with tokenizer.save_pretrained(), or take --own-text"
            ) from error
        return model, None  # its config knows where texts begin and end


class Run:
    """What is summed over, part by part.

    Args:
        options: those of the command.
        model: the model.
        tokenizer: its tokenizer, if there is one.
    """

    def __init__(self, options: argparse.Namespace, model: nn.Module, tokenizer: Any) -> None:
        self.options, self.model, self.tokenizer = options, model, tokenizer
        self._pieces: list[Piece] = []
        if options.text:
            self._pieces = pieces_of(options.text, options.sequences, options.length)
        self.sequences: int = len(self._pieces) or options.sequences
        self._size: int = BATCHES * options.batch_size  # sequences of a part

    def settings(self) -> dict[str, Any]:
        """Return all that the result depends on."""
        given = self.options
        names = ("curvature", "sequences", "length", "batch_size", "seed", "task", "dtype")
        texts = [[file.name, file.stat().st_size] for file in given.text or ()]
        own = {"temperature": given.temperature} if given.own_text else {"texts": texts}
        weights = fingerprint_of(self.model.parameters())["bfloat16"]
        return {**{name: getattr(given, name) for name in names}, **own, "weights": weights}

    def sequences_before(self, part: int) -> int:
        """Return how many sequences all parts before this one have."""
        return min(part * self._size, self.sequences)

    def parts(self, first: int) -> Iterator[tuple[int, list[Batch]]]:
        """Yield the batches of each part, from `first` on."""
        for part in range(first, -(-self.sequences // self._size)):
            start, stop = self.sequences_before(part), self.sequences_before(part + 1)
            edges = [*range(start, stop, self.options.batch_size), stop]
            generator = self._generator(part, 0)
            batches = [self._batch(a, b, generator) for a, b in pairwise(edges)]
            yield part, [batch for batch in batches if batch is not None]

    def fisher(self, part: int, batches: list[Batch]) -> KroneckerFisher | dict[str, Tensor]:
        """Return the Fisher of the batches of a part."""
        generator = self._generator(part, 1)
        if not batches:
            return {}
        if self.options.curvature == "kronecker":
            return fisher_kronecker(self.model, batches, kind="sampled", generator=generator)
        return fisher_diagonal(self.model, batches, kind="sampled", generator=generator)

    def _batch(self, start: int, stop: int, generator: torch.Generator) -> Batch | None:
        length, options = self.options.length, self.options
        if options.own_text:
            size, heat = stop - start, options.temperature
            return say(self.model, self.tokenizer, size, length, heat, generator)
        return read_pieces(self._pieces[start:stop], self.tokenizer, length)

    def _generator(self, part: int, use: int) -> torch.Generator:
        """Return the source of random numbers of a part, so that it does not need those before."""
        return torch.Generator().manual_seed((self.options.seed << 32) + 2 * part + use)


@dataclass
class FisherSum:
    """The sum over parts, from which their mean is taken.

    Attributes:
        tensors: what was summed: `inputs.NAME` and `outputs.NAME` of layers, `diagonal.NAME`.
        layers: the plain values of layers, by name.
        rows: the positions at which a layer was used, by name.
        parts: how many parts were added.
        samples: the sequences in them.
        labels: the labels in them.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, float] = field(default_factory=dict)
    parts: int = 0
    samples: int = 0
    labels: int = 0
    _saved: float = field(default_factory=time.monotonic)
    _cost: float = 0.0  # seconds that writing took

    @classmethod
    def of_file(cls, file: Path, settings: Mapping[str, Any]) -> "FisherSum":
        """Return what a run that was stopped has summed; raise if it had other settings."""
        if not file.is_file():
            return cls()
        stored = read_tensors(file)
        values = json.loads(stored.metadata["values"])
        before = values.pop("settings")
        different = [name for name in settings if settings[name] != before.get(name)]
        if different:
            raise ValueError(
                f"{file.parent} has the beginning of a run with another {different[0]} "
                f"({before.get(different[0])}): go on with the same options, or choose another "
                "--out"
            )
        return cls(stored.tensors, **values)

    def add(self, fisher: KroneckerFisher | Mapping[str, Tensor], batches: list[Batch]) -> None:
        """Add the Fisher of a part, the mean over its batches."""
        self.parts += 1
        samples = sum(len(batch["labels"]) for batch in batches)
        labels = sum(int((batch["labels"][:, 1:] != IGNORE).sum()) for batch in batches)
        self.samples, self.labels = self.samples + samples, self.labels + labels
        diagonal = fisher.diagonal if isinstance(fisher, KroneckerFisher) else fisher
        for name, tensor in diagonal.items():
            self._add(f"diagonal.{name}", tensor * labels)
        for name, own in fisher.factors.items() if isinstance(fisher, KroneckerFisher) else ():
            rows = own.positions * samples
            self._add(f"inputs.{name}", own.inputs * rows)
            self._add(f"outputs.{name}", own.outputs * labels)
            self.rows[name] = self.rows.get(name, 0.0) + rows
            self.layers[name] = {"bias": own.bias, "inputs_first": own.inputs_first}

    def _add(self, key: str, tensor: Tensor) -> None:
        tensor = tensor.cpu()
        self.tensors[key] = self.tensors[key].add_(tensor) if key in self.tensors else tensor

    def save_if_due(self, file: Path, settings: Mapping[str, Any]) -> None:
        """Write the sum to a file, unless that would take too much of the time."""
        start = time.monotonic()
        if start - self._saved < self._cost / SAVING:
            return
        names = ("layers", "rows", "parts", "samples", "labels")
        values = {**{name: getattr(self, name) for name in names}, "settings": dict(settings)}
        write_tensors(file, self.tensors, {"values": json.dumps(values)})
        self._saved = time.monotonic()
        self._cost = self._saved - start

    def mean(self, curvature: str) -> KroneckerFisher | dict[str, Tensor]:
        """Return the Fisher of all parts."""
        if self.labels == 0:
            raise ValueError("expected text with tokens to predict, but there is none")
        diagonal = {
            key.removeprefix("diagonal."): tensor / self.labels
            for key, tensor in self.tensors.items()
            if key.startswith("diagonal.")
        }
        if curvature == "diagonal":
            return diagonal
        factors = {
            name: KroneckerFactors(
                self.tensors[f"inputs.{name}"] / self.rows[name],
                self.tensors[f"outputs.{name}"] / self.labels,
                positions=self.rows[name] / self.samples,
                **own,
            )
            for name, own in self.layers.items()
        }
        return KroneckerFisher(factors, diagonal)
