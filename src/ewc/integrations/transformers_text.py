"""Text for the Fisher of a language model: what it says itself, or pieces of text files.

Both come as batches for `memory.consolidate` and `fisher_*`, mappings of `input_ids`,
`attention_mask` and `labels`. Shorter sequences are filled up at their ends, without labels there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ewc.fisher.batches import is_encoder_decoder
from ewc.fisher.likelihood import IGNORE
from ewc.fisher.model import preserved
from ewc.parameters import unwrap

try:
    from transformers.utils import logging
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "ewc.integrations.transformers needs the extra 'transformers': "
        "pip install 'ewc[transformers]'"
    ) from error

Batch = dict[str, Tensor]


def own_text(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    sequences: int = 512,
    length: int = 256,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    batch_size: int = 16,
) -> list[Batch]:
    """Return text that a causal language model says itself, to remember it without its old data.

    Each sequence begins with the token for the beginning of a text, or that for its end, or, where
    the tokenizer has neither, any token of the vocabulary. The others are drawn from the model's
    full distribution, whatever its generation config says. A text that ends is filled up, and what
    fills it has no labels. At temperature 1 the labels are what the model itself would say, so that
    `kind="empirical"` is then a sample of the same Fisher as `kind="sampled"`.

    The batches are plain lists of mappings: add batches of your own text to them as you like.

    Args:
        model: a causal language model of Transformers. It is left as it was.
        tokenizer: its tokenizer, of which the tokens for the beginning and the end are used; those
            of the model's config by default.
        sequences: how many.
        length: the tokens of each, the first one included.
        temperature: what the logits are divided by. Below 1 the text is more like what the model
            finds likely, above 1 less.
        generator: the source of random numbers; the same one gives the same text.
        batch_size: sequences per batch.

    Example:
        >>> import torch, ewc
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from ewc.integrations.transformers import own_text
        >>> sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 20, "n_positions": 8}
        >>> model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        >>> batches = own_text(model, sequences=4, length=8)
        >>> memory = ewc.EWC(model, curvature="kronecker")
        >>> fisher = memory.consolidate(batches, task="base model", kind="sampled")
    """
    for name, value in (("sequences", sequences), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"expected at least 1 as {name}, got {value}")
    if not temperature > 0:
        raise ValueError(f"expected a temperature above 0, got {temperature}")
    check_length(model, length)
    found = []
    # The bar is that of Transformers, which its users switch off with disable_progress_bar().
    with logging.tqdm(total=sequences, desc="own text", unit="sequence") as bar:
        while sequences > 0:
            size = min(batch_size, sequences)
            found.append(say(model, tokenizer, size, length, temperature, generator))
            sequences -= size
            bar.update(size)
    return found


def check_length(model: nn.Module, length: int) -> None:
    """Raise unless a model is a causal language model of sequences of this length."""
    model = unwrap(model)
    can_generate = getattr(model, "can_generate", bool)
    if not can_generate() or is_encoder_decoder(model):
        raise TypeError(
            "expected a causal language model of Transformers, as AutoModelForCausalLM gives, got "
            f"a {type(model).__name__}"
        )
    longest = getattr(_text_config(model), "max_position_embeddings", None)
    if length < 2 or (longest is not None and length > longest):
        most = "" if longest is None else f" and at most {longest}, all that the model can read"
        raise ValueError(f"expected a length of at least 2 tokens{most}, got {length}")


def _text_config(model: nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config(decoder=True)


def say(
    model: nn.Module,
    tokenizer: Any,
    size: int,
    length: int,
    temperature: float,
    generator: torch.Generator | None,
) -> Batch:
    """Return a batch of sequences drawn from the model: the arguments are those of `own_text`."""
    model = unwrap(model)
    with preserved(model), torch.no_grad():
        return _said(model, tokenizer, size, length, temperature, generator)


def _said(
    model: nn.Module,
    tokenizer: Any,
    size: int,
    length: int,
    temperature: float,
    generator: torch.Generator | None,
) -> Batch:
    config: Any = _text_config(model)
    source: Any = tokenizer if tokenizer is not None else config
    ends = getattr(source, "eos_token_id", None)
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    start = getattr(source, "bos_token_id", None)
    starts = ends if start is None else [start]
    parameter = next(model.parameters())
    place = parameter.device if generator is None else generator.device
    if starts and starts[0] >= config.vocab_size:
        raise ValueError(
            f"expected a token of the model to begin with, but {starts[0]} is outside of its "
            f"vocabulary of {config.vocab_size}: give its own tokenizer"
        )
    if starts:
        tokens = torch.full((size, 1), starts[0], device=place)
    else:
        tokens = torch.randint(config.vocab_size, (size, 1), generator=generator, device=place)
    over = torch.zeros(size, dtype=torch.bool, device=place)
    lengths = torch.full((size,), length, device=place)
    cache, inputs = None, tokens
    for position in range(1, length):
        # Whatever stands after the end of a text is masked later, and nothing before it sees it.
        output: Any = model(
            input_ids=inputs.to(parameter.device), past_key_values=cache, use_cache=True
        )
        logits = output.logits[:, -1].to(place, torch.float32) / temperature
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, drawn], 1)
        ended = torch.isin(drawn[:, 0], torch.tensor(ends, dtype=torch.long, device=place)) & ~over
        lengths[ended] = position + 1
        over |= ended
        if bool(over.all()):
            break
        cache = getattr(output, "past_key_values", None)
        inputs = tokens if cache is None else drawn  # some models have no cache, or another one
    rows = zip(tokens.cpu(), lengths.tolist(), strict=True)
    return joined([row[:count] for row, count in rows])


def joined(rows: Sequence[Tensor]) -> Batch:
    """Return sequences of token numbers as one batch, the shorter ones filled up at their ends."""
    width = max(map(len, rows))
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for n, row in enumerate(rows):
        tokens[n, : len(row)] = row
        tokens[n, len(row) :] = row[-1]  # a token that the model knows
        mask[n, : len(row)] = 1
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, IGNORE),
    }


@dataclass(frozen=True)
class Piece:
    """A part of a text file, in bytes."""

    file: Path
    start: int
    stop: int


BYTES_PER_TOKEN = 4  # of a piece, at least, where there is enough text
LONGEST_TOKEN = 16  # bytes per token that are read, at most


def pieces_of(files: Sequence[Path], sequences: int, length: int) -> list[Piece]:
    """Return pieces that lie evenly in all files, none of which overlap: one for each sequence.

    Fewer than `sequences` if there is less text than that.

    Args:
        files: text files, in UTF-8.
        sequences: how many.
        length: the tokens of each.
    """
    sizes = {file: file.stat().st_size for file in files}
    total = sum(sizes.values())
    if total == 0:
        raise ValueError("expected files with text, but they are empty")
    share = max(total / sequences, BYTES_PER_TOKEN * length)
    pieces = []
    for file, size in sizes.items():
        count = max(1, round(size / share)) if size else 0
        edges = [n * size // max(count, 1) for n in range(count + 1)]
        pieces += [Piece(file, *edge) for edge in pairwise(edges)]
    if len(pieces) > sequences:  # many small files
        pieces = [pieces[n * len(pieces) // sequences] for n in range(sequences)]
    return pieces


def read_pieces(pieces: Sequence[Piece], tokenizer: Any, length: int) -> Batch | None:
    """Return pieces as one batch, without the words that are cut at their ends.

    None if there is no token to predict in any of them.
    """
    rows = []
    for piece in pieces:
        with piece.file.open("rb") as file:
            file.seek(piece.start)
            read = file.read(min(piece.stop - piece.start, LONGEST_TOKEN * length))
            ends = not file.read(1)
        text = read.decode("utf-8", errors="ignore")
        if piece.start > 0:
            text = text.split(maxsplit=1)[-1] if text.strip() else ""
        if not ends:
            text = text.rsplit(maxsplit=1)[0] if text.strip() else ""
        # One text at a time: a tokenizer may have no token to fill shorter ones with.
        numbers = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        if len(numbers) > 1:
            rows.append(torch.tensor(numbers))
    return joined(rows) if rows else None
