"""One batch, in any of the forms that a loader may yield.

Accepted are `(inputs, targets)`, `inputs`, `(inputs,)`, `((first, second), targets)`, or a mapping
for models that are called with keywords, in which `labels` are the targets. Every tensor has the
samples in its first dimension. A list without tensors (of strings, of lengths) with one item per
sample, or such a NumPy array, is split into samples too. All other values are the same for all
samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ewc.fisher.likelihood import IGNORE
from ewc.fisher.packing import refuse_packing

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
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Tensor | None
    mask: Tensor | None
    size: int
    where: str

    def map(self, function: Callable[[Tensor], Tensor]) -> "FisherBatch":
        """Return the batch with each of its tensors replaced by `function(tensor)`."""
        args, kwargs = _map_tensors(self.args, function), _map_tensors(self.kwargs, function)
        targets = None if self.targets is None else function(self.targets)
        mask = None if self.mask is None else function(self.mask)
        return replace(self, args=args, kwargs=kwargs, targets=targets, mask=mask)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that contain samples, always in the same order."""
        found: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            found.append(tensor)
            return tensor

        self.map(note)
        return found

    def take(self, start: int, stop: int) -> "FisherBatch":
        """Return the samples `start` to `stop`."""
        return self._subset(slice(start, stop), stop - start)

    def pick(self, samples: list[int]) -> "FisherBatch":
        """Return the samples with these numbers, in this order."""
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

    def is_like(self, other: "FisherBatch") -> bool:
        """Whether two joinable batches differ in nothing but their samples."""
        return bool(_structure(self) == _structure(other))

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
            raise ValueError(
                f"the model must return a tensor with {self.size} samples first; "
                f"for {self.where} it returned {came}"
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
        if len(item) not in (1, 2):
            raise ValueError(
                f"{where} has {len(item)} items, but (inputs, targets) was expected: "
                "put several inputs in a tuple, ((first, second), targets)"
            )
        inputs, targets = (item[0], None) if len(item) == 1 else item
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
        refuse_packing(kwargs, where)
        targets, mask = _keyword_targets(model, kwargs, targets)
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
    model: nn.Module, kwargs: dict[str, Any], targets: Any
) -> tuple[Any, Tensor | None]:
    """Take `labels` out of the keywords, because the model is not to compute a loss from them.

    Returns the targets and the positions that count. The labels of an encoder-decoder stay among
    the keywords, because it computes the inputs of its decoder from them. Without labels the
    attention mask, of an encoder-decoder that of its decoder, says which positions count.
    """
    labels = kwargs.get("labels", targets)
    decodes = is_encoder_decoder(model)
    if not decodes:
        kwargs.pop("labels", None)
    if isinstance(labels, Tensor) and labels.ndim == 2 and _predicts_next(model):
        labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORE)], dim=1)
    mask = kwargs.get("decoder_attention_mask" if decodes else "attention_mask")
    if isinstance(mask, Tensor) and labels is None and mask.ndim == 2:
        return labels, mask.bool()
    return labels, None


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
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.ndim:
            sizes.append(tensor.size(0))  # a nested tensor has no shape
        return tensor

    _map_tensors(tensors, note)
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


def _map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return function(value) if value.ndim else value
    if isinstance(value, Mapping):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, tuple | list) and _has_tensors(value):
        return _like(value, [_map_tensors(item, function) for item in value])
    return value


def _like(value: Any, items: list[Any]) -> tuple[Any, ...]:
    """Return the items as a named tuple if the value is one, and as a plain tuple otherwise."""
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return any(map(_has_tensors, value))
    return isinstance(value, Tensor)


def _select(value: Any, which: slice | list[int], size: int) -> Any:
    """Return some samples of everything that has one item per sample."""
    if isinstance(value, Tensor):
        return _select_rows(value, which) if value.ndim else value
    if isinstance(value, Mapping):
        return {key: _select(item, which, size) for key, item in value.items()}
    if isinstance(value, tuple | list) and _has_tensors(value):
        return _like(value, [_select(item, which, size) for item in value])
    if not _has_item_per_sample(value, size):
        return value
    if isinstance(value, np.ndarray) or isinstance(which, slice):
        return value[which]
    return type(value)(value[n] for n in which)


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


def _structure(batch: FisherBatch) -> Any:
    """Return what the samples share: the structure, and the shape and type of each tensor."""

    def shape_and_type(tensor: Tensor) -> Any:
        return tensor.shape[1:], tensor.dtype

    return _map_tensors((batch.args, batch.kwargs, batch.targets, batch.mask), shape_and_type)


def _device_of(model: nn.Module) -> torch.device | None:
    """Return the model's device, or None if it spans several devices and moves its own inputs."""
    devices = {parameter.device for parameter in model.parameters()}
    return devices.pop() if len(devices) == 1 else None
