"""A memory in the `Trainer` of Transformers and those derived from it, such as TRL's `SFTTrainer`.

The memory is saved as `ewc_memory.safetensors` beside `optimizer.pt` in every `checkpoint-N`, one
with a name of its own as `ewc_memory_NAME.safetensors`. A `Trainer` does not tell its callbacks
which checkpoint it resumes, so the place of the file and a name of the run are recorded in
`trainer_state.json`, and the file has that name too.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

import torch
from torch import Tensor, nn

from ewc.distributed.shards import NO_DEEPSPEED
from ewc.fisher.batches import is_encoder_decoder
from ewc.fisher.likelihood import IGNORE
from ewc.fisher.model import preserved
from ewc.integrations.trainer_memory import DEFAULT_NAME, Consolidation, TrainerMemory
from ewc.memory import EWC
from ewc.parameters import unwrap
from ewc.step_size import How
from ewc.storage import FILE as MEMORY_FILE
from ewc.storage import curvature_of, keeps_tasks, read_config, read_tensors, write_tensors

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.utils import logging
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "ewc.integrations.transformers needs the extra 'transformers': "
        "pip install 'ewc[transformers]'"
    ) from error


# With the default name:
FILE_NAME = "ewc_memory.safetensors"
KEY = "ewc"  # of our entry in trainer_state.json


class EWCCallback(TrainerCallback):
    """Lets a memory pull on the weights while a `Trainer` trains.

    The memory is attached when training begins and detached when it ends. It is saved with every
    checkpoint and restored by `train(resume_from_checkpoint=...)`. The trainer's log has its
    strength, and the estimated and the allowed rise of the loss of what is remembered.

    Args:
        memory: the memory, made of the model that is given to the trainer; or a directory that
            `save_pretrained` wrote, which is loaded when training begins, for the model that the
            trainer then has. If that has LoRA layers, it becomes a `LoraEWC`.
        strength: λ, in place of what the directory has.
        budget: a budget, in place of what the directory has.
        how: how it pulls, see `EWC.attach`. By default as the memory does: `"proximal"`, and
            `"gradient"` for a `LoraEWC`.
        consolidate: whether to consolidate at the end of training, on the trainer's own batches of
            training data; or the options for it, such as `{"task": "B", "max_samples": 1000}`.
            Without a `kind` it is `"exact"` for a classifier of at most 1,000 classes, and
            `"sampled"` otherwise, as for language models. Two samples of the first batch are tried
            before the first step.
        name: the name under which the memory is saved and restored. With several memories in one
            trainer, each needs a name of its own.

    Example:
        >>> import ewc
        >>> from ewc.integrations.transformers import EWCCallback
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=8)
        >>> model = GPT2LMHeadModel(config)
        >>> memory = ewc.EWC(model, strength=100.0)
        >>> callback = EWCCallback(memory, consolidate={"task": "B", "kind": "sampled"})
        >>> # Trainer(model, args, train_dataset=..., callbacks=[callback]).train()
    """

    def __init__(
        self,
        memory: EWC | str | os.PathLike[str],
        *,
        strength: float | None = None,
        budget: float | Literal["auto"] | None = None,
        how: How | None = None,
        consolidate: Consolidation = False,
        name: str = DEFAULT_NAME,
    ) -> None:
        self._directory: Path | None = None
        self._options: dict[str, Any] = {"strength": strength, "budget": budget}
        if isinstance(memory, str | os.PathLike):
            self._directory = Path(memory)
            read_config(memory)  # raises now if there is none
            self._inside = TrainerMemory(None, how, consolidate, name)
        elif strength is not None or budget is not None:
            raise ValueError(
                "strength= and budget= are for a directory: set memory.strength or memory.budget"
            )
        else:
            self._inside = TrainerMemory(memory, how, consolidate, name)
        self._key, self._file_name = _places(name)
        self._run = ""
        self._missing = ""  # why there is no memory in a checkpoint that was resumed

    @property
    def memory(self) -> EWC:
        """The memory that pulls."""
        return self._inside.memory

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse the name of another callback, and DeepSpeed."""
        self._check_name(state)
        if getattr(args, "deepspeed_plugin", None) is not None:
            raise TypeError(NO_DEEPSPEED)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the memory if training is resumed, and attach it to the optimizer."""
        self._check_name(state)  # again: a callback may be added after `on_init_end`
        stored = self._stored(args, state)
        if self._directory is not None:
            self._load(self._directory, kwargs["model"], stored, is_resumed=state.global_step > 0)
        if stored is not None:
            self.memory.load_state_dict(stored)
        elif state.global_step > 0:
            self._inside.check_resumed(self._missing)
        self._run = uuid4().hex
        self._inside.start([kwargs["optimizer"]])
        if self._inside.wants_a_batch:
            loader = kwargs["train_dataloader"]
            _watch_first_batch(loader, lambda batch: self._inside.try_out(batch, loader))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record, before a checkpoint may be saved, where its memory will be."""
        self._inside.give_up_trying()
        file = str((_checkpoint(args, state) / self._file_name).absolute())
        _records(state)[self._key] = {"run": self._run, "file": file}

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the memory beside the optimizer."""
        tensors = self.memory.state_dict()  # by all ranks: the memory may be sharded
        if args.should_save:
            file = _checkpoint(args, state) / self._file_name
            write_tensors(file, tensors, {"run": _name(self._run, state)})

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log the strength and the rise beside the loss of the training."""
        if logs is None or "loss" not in logs or self._inside.loaded is None:
            return
        values = self._inside.values()
        logs.update(values)  # for those callbacks that come after this one
        if state.log_history:
            state.log_history[-1].update(values)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach the memory, and consolidate if that was asked for."""
        self._inside.finish(kwargs["train_dataloader"])

    def _check_name(self, state: TrainerState) -> None:
        """Raise if a callback before this one has its name.

        A callback does not see the others, but all see the same state. It is saved without this
        list, which is none of its fields.
        """
        memories: list[TrainerMemory] = vars(state).setdefault("_ewc_memories", [])
        if self._inside not in memories:
            memories.append(self._inside)
        self._inside.check_name(memories)

    def _stored(self, args: TrainingArguments, state: TrainerState) -> dict[str, Tensor] | None:
        """Return the memory of the checkpoint that is resumed; None if there is none."""
        if state.global_step == 0:
            return None
        recorded = _records(state).get(self._key)
        if recorded is None:
            self._missing = f"the checkpoint was saved without a memory named {self._inside.name!r}"
            return None
        places = (_checkpoint(args, state) / self._file_name, Path(recorded["file"]))
        self._missing = (
            f"the checkpoint of step {state.global_step} had a memory, but it is neither in "
            f"{places[0]} nor in {places[1]}"
        )
        return _first_of_run(places, _name(recorded["run"], state))

    def _load(
        self,
        directory: Path,
        model: nn.Module,
        stored: Mapping[str, Tensor] | None,
        *,
        is_resumed: bool,
    ) -> None:
        """Load the memory of a directory, unless it is that of this model already.

        Args:
            directory: where it is.
            model: what is trained.
            stored: the memory of a checkpoint that is resumed, which is to replace it.
            is_resumed: whether a checkpoint is resumed, whose weights have moved.
        """
        model = unwrap(model)
        if self._inside.loaded is not None and self._inside.loaded.model is model:
            return  # of an earlier training
        kind = _kind_of_memory(model, read_config(directory))
        if stored is not None:  # and its strength
            like = {} if curvature_of(stored) == "diagonal" else {"curvature": curvature_of(stored)}
            self._inside.loaded = kind(model, keep_tasks=keeps_tasks(stored), **like)
        elif is_resumed:
            self._inside.loaded = kind.load(directory / MEMORY_FILE, model, **self._options)
        else:
            self._inside.loaded = kind.from_pretrained(directory, model, **self._options)


def _kind_of_memory(model: nn.Module, config: Mapping[str, Any]) -> type[EWC]:
    """Return the class of the memory in a directory, for a model that may have adapters."""
    if not hasattr(model, "peft_config"):
        return EWC
    from ewc.integrations.peft import LoraEWC  # it needs PEFT

    of_factors = config["model_class"] == type(model).__name__ and config["memory"] == "EWC"
    return EWC if of_factors else LoraEWC


def _watch_first_batch(loader: Any, look: Callable[[Any], None]) -> None:
    """Call `look` with the first batch that is drawn from a loader, before anyone else has it.

    A `Trainer` shows its batches to no callback, and to draw one here would change the random
    numbers and the data that it trains with. So the loader gets a class of its own until it is
    iterated over. The loaders of Accelerate hide their real class, which is why it is not simply
    assigned.
    """
    kind, assign = type(loader), vars(object)["__class__"].__set__

    def iterate(self: Any) -> Iterator[Any]:
        assign(self, kind)
        batches = iter(self)
        for batch in batches:
            look(batch)
            yield batch
            break
        yield from batches

    with suppress(TypeError):  # of builtin types, such as a list
        assign(loader, type(kind.__name__, (kind,), {"__iter__": iterate}))


def _places(name: str) -> tuple[str, str]:
    """Return the key in `trainer_state.json` and the name of the file of a memory."""
    if name == DEFAULT_NAME:
        return KEY, FILE_NAME
    return f"{KEY}_{name}", f"ewc_memory_{name}.safetensors"


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the directory of the checkpoint of the present step."""
    assert args.output_dir is not None
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _records(state: TrainerState) -> dict[str, Any]:
    """Return what `trainer_state.json` keeps for callbacks; its annotation is that of a list."""
    return cast(dict[str, Any], state.stateful_callbacks)


def _name(run: str, state: TrainerState) -> str:
    """Return the name of a run's memory at the present step."""
    return f"{run}-{state.global_step}"


def _first_of_run(places: tuple[Path, ...], name: str) -> dict[str, Tensor] | None:
    """Return the first memory with this name, so that one of another run is never taken."""
    for place in places:
        if place.is_file():
            stored = read_tensors(place)
            if stored.metadata.get("run") == name:
                return stored.tensors
    return None


if __name__ == "__main__":
    import sys

    from ewc.integrations.transformers_command import main

    sys.exit(main())


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
    batches = []
    # The bar is that of Transformers, which its users switch off with disable_progress_bar().
    with logging.tqdm(total=sequences, desc="own text", unit="sequence") as bar:
        while sequences > 0:
            size = min(batch_size, sequences)
            batches.append(say(model, tokenizer, size, length, temperature, generator))
            sequences -= size
            bar.update(size)
    return batches


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
    """Return sequences of token ids as one batch, the shorter ones filled up at their ends."""
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
        ids = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        if len(ids) > 1:
            rows.append(torch.tensor(ids))
    return joined(rows) if rows else None
