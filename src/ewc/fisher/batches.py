"""One batch, in any of the forms that a loader may yield.

Accepted are `(inputs, targets)`, `inputs`, `(inputs,)`, `((first, second), targets)`, or a mapping
for models that are called with keywords, in which `labels` are the targets, and a `completion_mask`
says which tokens of a causal language model count. Every tensor has the samples in its first
dimension. A list without tensors (of strings, of lengths) with one item per sample, or such a NumPy
array, is split into samples too. All other values are the same for all samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ewc.diagnostics import warn
from ewc.fisher.likelihood import IGNORE

PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
# PyTorch supports few operations on these, and to it the uint8 156 is -100, which is ignored.
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


@dataclass(frozen=True)
class FisherBatch:
    """The inputs and targets of some samples.

    Attributes:
        args: positional inputs of the model.
        kwargs: keyword inputs of the model.
        targets: the labels, if there are any.
        mask: true at the positions that count, if some do not.
        size: number of samples.
        where: the name of the batch in error messages, such as "batch 3".
        was_single: whether its samples were joined here, from batches of one sample each.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Tensor | None
    mask: Tensor | None
    size: int
    where: str
    was_single: bool = False

    def map(self, function: Callable[[Tensor], Tensor]) -> "FisherBatch":
        """Return the batch with each of its tensors replaced by `function(tensor)`."""
        args, kwargs = _map_tensors(self.args, function), _map_tensors(self.kwargs, function)
        targets = None if self.targets is None else function(self.targets)
        mask = None if self.mask is None else function(self.mask)
        return replace(self, args=args, kwargs=kwargs, targets=targets, mask=mask)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that contain samples, always in the same order."""
        tensors: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        self.map(note)
        return tensors

    def take(self, start: int, stop: int) -> "FisherBatch":
        """Return the samples `start` to `stop`."""
        return self._subset(slice(start, stop), stop - start)

    def pick(self, samples: list[int]) -> "FisherBatch":
        """Return the samples at these indices, in this order."""
        return self._subset(samples, len(samples))

    def _subset(self, which: slice | list[int], size: int) -> "FisherBatch":
        return replace(
            self,
            args=_select(self.args, which, self.size),
            kwargs=_select(self.kwargs, which, self.size),
            targets=_select(self.targets, which, self.size),
            mask=_select(self.mask, which, self.size),
            size=size,
        )

    @property
    def joinable(self) -> bool:
        """Whether the batch may wait for the next ones and be joined with them.

        Its tensors must be such that they can be copied side by side, and all else must be plain
        values, which the loader cannot change in the meantime.
        """
        return _joinable((self.args, self.kwargs, self.targets, self.mask), self.size)

    @property
    def structure(self) -> Any:
        """What the samples share; equal for joinable batches that differ in their samples only."""

        def shape_and_type(tensor: Tensor) -> Any:
            return tensor.shape[1:], tensor.dtype

        return _map_tensors((self.args, self.kwargs, self.targets, self.mask), shape_and_type)

    def outputs(self, model: nn.Module, *, one_output: bool = False) -> Tensor:
        """Run the model; return its output, the `logits` of it, or the first of a tuple.

        Args:
            model: the model.
            one_output: refuse a tuple of several outputs, where the others would count too.
        """
        out: Any = model(*self.args, **self.kwargs)
        if isinstance(out, Mapping) and "logits" in out:
            out = out["logits"]
        elif hasattr(out, "logits"):
            out = out.logits
        elif isinstance(out, tuple | list) and out:
            if one_output and len(out) > 1:
                raise TypeError(
                    "a model that FSDP2 shards must return one tensor, or `logits`, to a callable "
                    f"likelihood; for {self.where} it returned {len(out)} outputs: let it return "
                    "them as one tensor"
                )
            out = out[0]
        if not isinstance(out, Tensor) or out.ndim < 1 or out.shape[0] != self.size:
            came = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            single = ", which has one sample," if self.size == 1 else ""
            raise ValueError(
                f"the model must return a tensor with {self.size} samples first; "
                f"for {self.where}{single} it returned {came}"
            )
        return out


def read_batches(batches: Iterable[Any], model: nn.Module) -> Iterator[FisherBatch]:
    """Yield each item of `batches` as a `FisherBatch` on the model's device."""
    if isinstance(batches, Tensor | Mapping | str):
        raise TypeError(
            f"batches must be an iterable of batches, not a {type(batches).__name__}: "
            "wrap it in a list"
        )
    device = _device_of(model)
    for index, item in enumerate(batches):
        yield _read_batch(item, model, device, f"batch {index}")


def _read_batch(
    item: Any, model: nn.Module, device: torch.device | None, where: str
) -> FisherBatch:
    """Split one item of a loader into inputs and targets."""
    if device is not None:
        item = _map_tensors(item, lambda tensor: tensor.to(device, non_blocking=True))
    targets: Any = None
    mask = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    inputs = item
    if isinstance(item, tuple | list):
        samples = item and all(isinstance(sample, Mapping) for sample in item)
        if samples and (len(item) > 2 or not _has_tensors(item)):
            raise TypeError(
                f"{where} is a list of {len(item)} samples that no collator has joined, as of "
                "TRL's GRPOTrainer: give a mapping of tensors, such as input_ids and labels"
            )
        if len(item) not in (1, 2):
            raise ValueError(
                f"{where} has {len(item)} items, but (inputs, targets) was expected: "
                "put several inputs in a tuple, ((first, second), targets)"
            )
        inputs, targets = (item[0], None) if len(item) == 1 else item
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
        refuse_packing(kwargs, where)
        targets, mask = _keyword_targets(model, kwargs, targets, where)
    else:
        args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    if targets is not None and not isinstance(targets, Tensor):
        raise TypeError(
            f"targets must be a tensor; {where} has a {type(targets).__name__}. For other "
            "structures give a callable likelihood, with kind='empirical' (not with FSDP2)"
        )
    if targets is not None and targets.dtype in UNSIGNED:
        targets = targets.long()
    return FisherBatch(args, kwargs, targets, mask, _size_of((args, kwargs, targets), where), where)


def _keyword_targets(
    model: nn.Module, kwargs: dict[str, Any], targets: Any, where: str
) -> tuple[Any, Tensor | None]:
    """Take `labels` out of the keywords, because the model is not to compute a loss from them.

    Returns the targets and the positions that count. The labels of an encoder-decoder stay among
    the keywords, because it computes the inputs of its decoder from them. Without labels the
    attention mask, of an encoder-decoder that of its decoder, says which positions count.
    """
    labels = kwargs.get("labels", targets)
    if _predicts_next(model) and isinstance(kwargs.get("completion_mask"), Tensor):
        labels = _labels_of_answers(kwargs, labels, where)
    decodes = is_encoder_decoder(model)
    if not decodes:
        kwargs.pop("labels", None)
    if isinstance(labels, Tensor) and labels.ndim == 2 and _predicts_next(model):
        labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORE)], dim=1)
    mask = kwargs.get("decoder_attention_mask" if decodes else "attention_mask")
    if isinstance(mask, Tensor) and labels is None and mask.ndim == 2:
        return labels, mask.bool()
    return labels, None


def _labels_of_answers(kwargs: dict[str, Any], labels: Any, where: str) -> Tensor:
    """Take TRL's `completion_mask` out of the keywords; return labels of what it includes."""
    answer: Tensor = kwargs.pop("completion_mask")
    tokens = kwargs.get("input_ids") if labels is None else labels
    if not isinstance(tokens, Tensor) or tokens.shape != answer.shape:
        came = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ValueError(
            f"the completion_mask of {where} has shape {tuple(answer.shape)}, and what it is a "
            f"mask of has {came}"
        )
    half = len(tokens) // 2
    prompt = answer.cumsum(1) == 0
    tokens_of_prompt = tokens.where(prompt, -1)
    if labels is None and torch.equal(tokens_of_prompt[:half], tokens_of_prompt[half:]):
        warn(
            "the two halves of a batch have the same prompts: if these are chosen and rejected "
            "answers (DPO), both count for the Fisher. Give the trainer's loader itself, of which "
            "the chosen ones are taken, or the first half of each batch"
        )
    return tokens.masked_fill(answer == 0, IGNORE)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model says so in its config, as those of Transformers do."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _predicts_next(model: nn.Module) -> bool:
    """Whether the model predicts the next label, as causal language models of Transformers do.

    They shift the labels inside of their loss function. That function is also the default for
    classes that Transformers does not know, but such classes do not generate.
    """
    loss = getattr(getattr(model, "loss_function", None), "__name__", None)
    generates = bool(getattr(model, "can_generate", bool)())
    return loss == "ForCausalLMLoss" and generates and not is_encoder_decoder(model)


def _size_of(tensors: Any, where: str) -> int:
    sizes = [tensor.size(0) for tensor in sample_tensors(tensors)]  # a nested one has no shape
    if not sizes or sizes[0] == 0:
        raise ValueError(
            f"{where} is empty: expected tensors with at least one sample in their first dimension"
        )
    if len(set(sizes)) > 1:
        raise ValueError(
            "every tensor of a batch must have the samples first; "
            f"{where} has first dimensions {sizes}"
        )
    return sizes[0]


def leaves(value: Any) -> Iterator[Any]:
    """Yield what is in nested mappings, tuples and lists.

    To the pytrees of PyTorch the mappings that tokenizers return would be leaves.
    """
    if isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(item)
    else:
        yield value


def map_leaves(value: Any, function: Callable[[Any], Any], *, in_batch: bool = False) -> Any:
    """Return nested mappings, tuples and lists with `function(leaf)` in the place of each leaf.

    Mappings become dicts, and named tuples stay named.

    Args:
        value: what is nested, or a leaf.
        function: returns what is put in the place of a leaf.
        in_batch: lists and tuples without tensors are leaves too, and other lists become tuples.
    """
    if isinstance(value, Mapping):
        return {k: map_leaves(item, function, in_batch=in_batch) for k, item in value.items()}
    if not isinstance(value, tuple | list) or (in_batch and not _has_tensors(value)):
        return function(value)
    items = [map_leaves(item, function, in_batch=in_batch) for item in value]
    if hasattr(value, "_fields"):
        return type(value)(*items)
    return tuple(items) if in_batch else type(value)(items)


def sample_tensors(value: Any) -> list[Tensor]:
    """Return all tensors that contain samples."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor) and leaf.ndim]


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in leaves(value))


def _map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    def changed(leaf: Any) -> Any:
        return function(leaf) if isinstance(leaf, Tensor) and leaf.ndim else leaf

    return map_leaves(value, changed, in_batch=True)


def _select(value: Any, which: slice | list[int], size: int) -> Any:
    """Return some samples of everything that has one item per sample."""

    def chosen(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return _select_rows(leaf, which) if leaf.ndim else leaf
        if not _has_item_per_sample(leaf, size):
            return leaf
        if isinstance(leaf, np.ndarray) or isinstance(which, slice):
            return leaf[which]
        return type(leaf)(leaf[n] for n in which)

    return map_leaves(value, chosen, in_batch=True)


def _select_rows(tensor: Tensor, which: slice | list[int]) -> Tensor:
    if not tensor.is_nested and tensor.layout == torch.strided:
        return tensor[which]
    if not tensor.is_nested:  # sparse, in any layout
        rows = torch.arange(tensor.shape[0], device=tensor.device)[which]
        picked: Tensor = tensor.to_sparse_coo().index_select(0, rows)
        return picked.to_sparse(layout=tensor.layout)
    parts = tensor.unbind()
    chosen = list(parts[which]) if isinstance(which, slice) else [parts[n] for n in which]
    return torch.nested.as_nested_tensor(chosen, layout=tensor.layout)


def _has_item_per_sample(value: Any, size: int) -> bool:
    """Whether this is a list, tuple or array of one item per sample.

    A tuple of plain numbers is not: it may be a size.
    """
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and len(value) == size
    if isinstance(value, tuple) and all(isinstance(item, int | float) for item in value):
        return False
    return isinstance(value, tuple | list) and type(value) in (tuple, list) and len(value) == size


def _joinable(value: Any, size: int) -> bool:
    if isinstance(value, Tensor):
        return value.ndim > 0 and value.layout == torch.strided and not value.is_nested
    if isinstance(value, Mapping):
        return all(_joinable(item, size) for item in value.values())
    if isinstance(value, tuple | list):
        fixed = isinstance(value, tuple) and not _has_item_per_sample(value, size)
        return (fixed or _has_tensors(value)) and all(_joinable(item, size) for item in value)
    return isinstance(value, PLAIN_TYPES)


def _device_of(model: nn.Module) -> torch.device | None:
    """Return the model's device, or None if it spans several devices and moves its own inputs."""
    devices = {parameter.device for parameter in model.parameters()}
    return devices.pop() if len(devices) == 1 else None


BATCH_SIZE = 32  # joined to larger batches where they are small

Collate = Callable[[list[Any]], Any]


def as_batches(batches: Iterable[Any], collate: Collate | None) -> Iterable[Any]:
    """Return an iterable of batches: `batches` itself, or those of a dataset.

    Of a loader of pairs of answers, as of TRL's `DPOTrainer`, they have the chosen ones only.

    Args:
        batches: batches, or with `collate` the single samples of a dataset, or a list of them.
        collate: makes a batch of a list of samples.
    """
    if collate is not None:
        if isinstance(batches, DataLoader):
            raise ValueError("a DataLoader has a collator: leave out collate=, or give its dataset")
        dataset: Any = batches  # or a list of samples
        return as_batches(DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=collate), None)
    map_style = isinstance(batches, Dataset) and not isinstance(batches, IterableDataset)
    if map_style or hasattr(batches, "column_names"):
        raise TypeError(
            f"a {type(batches).__name__} gives its rows one by one, also after batch(n), and "
            "batches of tensors were expected: give it as it was before batch(n) with collate=, "
            "the collator of your trainer (torch.utils.data.default_collate for samples of "
            "tensors), or give a DataLoader"
        )
    return map(chosen_answers, batches) if has_pairs_of_answers(batches) else batches


def has_pairs_of_answers(loader: Any) -> bool:
    """Whether the collator of a loader is TRL's for preferences, which puts two answers in a batch.

    Raises for that of images, whose tensors do not have one row per answer.
    """
    collator = getattr(loader, "collate_fn", None)
    names = {cls.__name__ for cls in type(collator).__mro__ if cls.__module__.startswith("trl.")}
    if "DataCollatorForVisionPreference" in names:
        raise TypeError(
            "a loader of chosen and rejected answers to images (DPO) has no Fisher here: give "
            "batches of the chosen ones alone, with labels"
        )
    return "DataCollatorForPreference" in names


def chosen_answers(batch: Any) -> Any:
    """Return the first half of a batch of TRL's `DPOTrainer`: the chosen answers.

    The rejected ones are what the model is to unlearn. Only the tokens of answers have labels.
    What a reference model gave for each pair is no input of the model and is left out.
    """
    if not isinstance(batch, Mapping) or "completion_mask" not in batch:
        return batch
    left_out = ("ref_chosen_logps", "ref_rejected_logps", "completion_mask")
    chosen = {
        key: value[: len(value) // 2] if isinstance(value, Tensor) and value.ndim else value
        for key, value in batch.items()
        if key not in left_out
    }
    answer = batch["completion_mask"][: len(chosen["input_ids"])]
    return chosen | {"labels": chosen["input_ids"].masked_fill(answer == 0, IGNORE)}


def refuse_packing(inputs: Mapping[str, Any], where: str) -> None:
    """Raise if a batch is packed: the lengths of sequences are given, or positions start again.

    Args:
        inputs: the keywords of the model.
        where: the name of the batch in error messages.
    """
    lengths = [key for key in inputs if key.startswith(("cu_seq_len", "cu_seqlen"))]
    if lengths or _positions_start_again(inputs):
        shown = repr(lengths[0]) if lengths else "'position_ids' that start again within a row"
        raise ValueError(
            f"{where} is packed: it has {shown}, so several sequences share a row, and the Fisher "
            "needs the gradient of each. Use a loader without packing (packing=False and "
            "padding_free=False in TRL), or blocks of one sequence (packing_strategy='wrapped', "
            "padding_free=False)"
        )


def _positions_start_again(inputs: Mapping[str, Any]) -> bool:
    positions = inputs.get("position_ids")
    if "attention_mask" in inputs or not isinstance(positions, Tensor) or positions.ndim != 2:
        return False  # with a mask, positions may start after the padding
    return bool((positions.diff(dim=1) < 0).any())
