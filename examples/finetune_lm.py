"""Fine-tune a language model with the `Trainer` of Transformers, and keep what it knew.

The model, a small GPT-2, first learns the source code of Python's standard library. Then it is
tuned on something small and narrow, the language reference that comes with Python as
`pydoc_data.topics`: once as usual, and twice with one more line, the callback of a memory. One
memory has a number per weight, the other two small matrices per layer, and keeps more. Both texts
are on every disk that has Python; they are under the PSF license, and nothing is downloaded.

    pip install 'ewc[transformers]'
    python examples/finetune_lm.py --folder pretrained    # again: starts at fine-tuning
    python examples/finetune_lm.py --quick                # seconds: shows that it runs
"""

import argparse
import json
import math
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import ewc
from ewc.integrations.transformers import EWCCallback

NOT_READ = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
NOT_READ |= {"encodings", "pydoc_data"}  # tables of characters; the second text
END = "<|endoftext|>"


@dataclass(frozen=True)
class Settings:
    """The size of the model, and how long it is trained."""

    layers: int = 3
    width: int = 128
    vocabulary: int = 2048
    block: int = 128  # tokens per sequence
    batch: int = 16  # sequences per step
    steps: int = 900  # on the first text
    rate: float = 1e-3
    tuning_steps: int = 150  # on the second text
    tuning_rate: float = 5e-4
    tested: int = 256  # sequences per loss, at most
    every: int = 1  # read every n-th file of the first text
    seed: int = 0


QUICK = Settings(
    layers=1, width=32, vocabulary=300, block=32, steps=20, tuning_steps=10, tested=32, every=60
)


@dataclass(frozen=True)
class Text:
    """Sequences of tokens, (sequences, block): to train on, to choose with, to report."""

    train: Tensor
    validation: Tensor
    test: Tensor


def library_source() -> dict[str, str]:
    """Return the source of Python's standard library, by file, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    sources = {}
    for folder, inside, files in os.walk(root):
        inside[:] = sorted(set(inside) - NOT_READ)
        for file in sorted(Path(folder, name) for name in files if name.endswith(".py")):
            sources[str(file.relative_to(root))] = file.read_text("utf-8", errors="replace")
    return sources


def language_reference() -> dict[str, str]:
    """Return Python's language reference, by topic.

    Long topics repeat short ones, so each paragraph is kept in the shortest topic that has it:
    what is tested on may not be trained on under another name.
    """
    kept: dict[str, str] = {}
    seen: set[str] = set()
    for topic in sorted(topics, key=lambda topic: (len(topics[topic]), topic)):
        own = [part for part in topics[topic].split("\n\n") if part.strip() not in seen]
        seen.update(part.strip() for part in own)
        kept[topic] = "\n\n".join(own)
    return kept


def split(documents: dict[str, str]) -> tuple[list[str], list[str], list[str]]:
    """Split by document, two sixths held out; documents of all sizes are in each part."""
    by_size = sorted(documents, key=lambda name: (-len(documents[name]), name))
    parts: tuple[list[str], ...] = ([], [], [])
    for place, name in enumerate(by_size):
        parts[{2: 1, 5: 2}.get(place % 6, 0)].append(documents[name])
    return parts[0], parts[1], parts[2]


def as_blocks(tokenizer: ByteLevelBPETokenizer, documents: Iterable[str], length: int) -> Tensor:
    """Return documents as sequences of tokens of one length; what is left over is dropped."""
    tokens = [token for text in documents for token in tokenizer.encode(END + text).ids]
    return torch.tensor(tokens[: len(tokens) // length * length]).view(-1, length)


def texts(settings: Settings) -> tuple[Text, Text]:
    """Return the first and the second text."""
    source = library_source()
    old = {name: source[name] for name in sorted(source)[:: settings.every]}
    first, second = tokenized(settings, old, language_reference())
    return first, second


def tokenized(settings: Settings, *documents: dict[str, str]) -> list[Text]:
    """Return one text for each collection of documents, in tokens learned from the first."""
    splits = [split(collection) for collection in documents]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        splits[0][0], settings.vocabulary, special_tokens=[END], show_progress=False
    )
    tokens = []
    for parts in splits:
        train, validation, test = (as_blocks(tokenizer, part, settings.block) for part in parts)
        text = Text(train, some(validation, settings.tested), some(test, settings.tested))
        tokens.append(text)
    return tokens


def some(blocks: Tensor, count: int) -> Tensor:
    """Return at most so many sequences, evenly spaced."""
    return blocks[:: math.ceil(len(blocks) / count)]


Untrained = Callable[[Settings], PreTrainedModel]  # makes a model that has learned nothing yet


def untrained(settings: Settings) -> PreTrainedModel:
    """Return a GPT-2 that has learned nothing yet."""
    torch.manual_seed(settings.seed)
    config = GPT2Config(
        n_layer=settings.layers,
        n_embd=settings.width,
        n_head=max(1, settings.width // 64),
        n_positions=settings.block,
        vocab_size=settings.vocabulary,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def train(
    model: nn.Module,
    blocks: Tensor,
    settings: Settings,
    *,
    steps: int,
    rate: float,
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train with the `Trainer` of Transformers, as you would."""
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            max_steps=steps,
            learning_rate=rate,
            lr_scheduler_type="cosine",
            warmup_steps=steps // 20,
            per_device_train_batch_size=settings.batch,
            dataloader_pin_memory=torch.cuda.is_available(),
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            seed=settings.seed,
        )
        rows = [{"input_ids": row, "labels": row} for row in blocks]
        Trainer(model, args, train_dataset=rows, callbacks=list(callbacks)).train()


def pretrained(
    settings: Settings, text: Text, folder: Path | None, untrained: Untrained = untrained
) -> PreTrainedModel:
    """Return the model that knows the first text; from the folder, if it is there already."""
    if folder is None:
        return first_training(settings, text, untrained)
    record, made_by = folder / "settings.json", asdict(settings) | {"python": sys.version}
    for later in ("tuning_steps", "tuning_rate", "tested"):
        del made_by[later]
    if not record.exists():
        model = first_training(settings, text, untrained)
        model.save_pretrained(folder)
        record.write_text(json.dumps(made_by))  # last: without it the folder does not count
    settings_then = json.loads(record.read_text())
    if settings_then != made_by:
        raise SystemExit(
            f"expected a model made by {made_by} in {folder}, found {settings_then}: "
            "give another folder"
        )
    return type(untrained(settings)).from_pretrained(folder)


def first_training(
    settings: Settings, text: Text, untrained: Untrained = untrained
) -> PreTrainedModel:
    """Return the model after its first training."""
    model = untrained(settings)
    train(model, text.train, settings, steps=settings.steps, rate=settings.rate)
    return model


def batches(blocks: Tensor, size: int = 16) -> Iterator[dict[str, Tensor]]:
    """Yield batches as Transformers has them."""
    for rows in blocks.split(size):
        yield {"input_ids": rows, "labels": rows}


@torch.no_grad()
def loss_on(model: nn.Module, blocks: Tensor) -> float:
    """Return the mean loss per token, in nats."""
    model.eval()
    device = next(model.parameters()).device
    total = 0.0
    for batch in batches(blocks.to(device)):
        total += len(batch["labels"]) * float(model(**batch).loss)
    return total / len(blocks)


def main(arguments: Sequence[str] | None = None) -> None:
    """Show what fine-tuning costs, without and with a memory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, help="where the first training is kept")
    parser.add_argument("--samples", type=int, default=512, help="sequences for the Fishers")
    parser.add_argument("--quick", action="store_true", help="a tiny model that learns little")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else Settings()
    steps, rate = settings.tuning_steps, settings.tuning_rate

    old, new = texts(settings)
    print(f"old text: {old.train.numel():,} tokens, new text: {new.train.numel():,} tokens")
    models = {"untrained": untrained(settings)}
    models["before fine-tuning"] = model = pretrained(settings, old, options.folder)

    models["fine-tuned, plain"] = deepcopy(model)
    train(models["fine-tuned, plain"], new.train, settings, steps=steps, rate=rate)

    sample = some(old.train, options.samples).to(model.device)
    for curvature in ("diagonal", "kronecker"):
        models[f"EWC, {curvature}"] = tuned = deepcopy(model)
        memory = ewc.EWC(tuned, curvature=curvature)
        memory.consolidate(batches(sample), task="old", kind="sampled")
        memory_callback = EWCCallback(memory)  # the one line more
        train(tuned, new.train, settings, steps=steps, rate=rate, callbacks=[memory_callback])

    print(f"\n{'loss (perplexity) on':20}{'old text':>18}{'new text':>18}")
    for name, model in models.items():
        losses = [loss_on(model, text.test) for text in (old, new)]
        print(f"{name:20}" + "".join(f"{f'{x:.3f} ({math.exp(x):.1f})':>18}" for x in losses))


if __name__ == "__main__":
    main()
