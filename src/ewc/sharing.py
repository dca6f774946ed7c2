"""A memory as a file that others can use: smaller if wished, and with a card that says what it is.

A file has the tensors of `EWC.state_dict()`, and in its metadata the card and how the tensors are
stored. Precisions may be in bfloat16 or in 8 bits. Anchors that are the weights of a checkpoint
which everybody has may be left out; a digest of each shows, when the file is loaded, whether the
model has these weights.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from ewc.dtypes import at_least_float32
from ewc.files import read_tensors, write_tensors
from ewc.log_codes import decode, encode
from ewc.version import __version__

PrecisionType = Literal["full", "bfloat16", "8 bits"]
Rename: TypeAlias = Mapping[str, str] | Callable[[str], str]

KEY = re.compile(r"(total|task\.\d+)\.(precision|anchor|remainder)\.(.+)")
TOP = "top."  # before the key of a tensor in 8 bits: its largest number


def read_card(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the card of a saved memory: what it is of, and how it was made.

    Example:
        >>> import torch, ewc
        >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
        >>> memory.anchor(1.0, task="A")
        >>> memory.save("a.safetensors", card={"data": "random numbers", "samples": 8})
        >>> card = ewc.read_card("a.safetensors")
        >>> card["model"], card["data"], card["tasks"]
        ('Linear', 'random numbers', ['A'])
    """
    return dict(_plain_values(read_tensors(path)[1], "card", path))


def save_state(
    path: str | os.PathLike[str],
    state: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    precision: PrecisionType,
    anchors: bool,
    card: Mapping[str, Any],
) -> None:
    """Write the state of a memory to a file.

    Args:
        path: the file.
        state: what `EWC.state_dict()` returned.
        weights: the model's present weights, by name.
        precision: how precisions are stored.
        anchors: whether anchors are stored; without them they must be the present weights.
        card: what else to say about the memory.
    """
    if precision not in get_args(PrecisionType):
        known = ", ".join(map(repr, get_args(PrecisionType)))
        raise ValueError(f"expected precision to be one of {known}, got {precision!r}")
    stored: dict[str, Tensor] = {}
    digests: dict[str, str] = {}
    for key, tensor in state.items():
        _, field, name = _split(key)
        if field == "precision":
            stored |= _stored_precision(key, tensor, precision)
        elif field == "anchor" and not anchors:
            _check_is_weight(name, tensor, weights)
            digests[name] = _digest(tensor)
        elif field != "remainder" or (precision == "full" and anchors):
            stored[key] = tensor
    storage = {"precision": precision, "anchors": anchors, "digests": digests}
    write_tensors(path, stored, {"card": _as_json(card), "storage": _as_json(storage)})


def load_state(
    path: str | os.PathLike[str],
    weights: Mapping[str, Tensor],
    *,
    rename: Rename | None,
    grow: bool,
) -> dict[str, Tensor]:
    """Return the state in a file, with the names and shapes of a model's weights.

    Args:
        path: the file.
        weights: the model's weights, by name.
        rename: from the names in the file to those of the model.
        grow: whether weights may have more rows or columns than in the file.
    """
    stored, metadata = read_tensors(path)
    storage = _plain_values(metadata, "storage", path)
    new_names = _new_names({_split(key)[2] for key in stored} - {""}, rename)
    try:
        return _with_weights(stored, storage, new_names, weights, grow, path)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: it has no {error}") from error


def _with_weights(
    stored: Mapping[str, Tensor],
    storage: Mapping[str, Any],
    new_names: Mapping[str, str],
    weights: Mapping[str, Tensor],
    grow: bool,
    path: object,
) -> dict[str, Tensor]:
    """Return the state that is stored, with the names, shapes and anchors of a model's weights."""
    state: dict[str, Tensor] = {}
    for key, tensor in stored.items():
        prefix, field, name = _split(key)
        if not prefix:
            state[key] = tensor
            continue
        if key.startswith(TOP):
            continue
        values = decode(tensor, stored[TOP + key]) if tensor.dtype == torch.uint8 else tensor
        values = values.to(at_least_float32(values.dtype))
        _check_values(field, name, values, path)
        new = new_names[name]
        weight = _weight_like(new, values, weights, grow)
        state[f"{prefix}.{field}.{new}"] = _grown(values, weight)
        if field == "precision" and not storage["anchors"]:
            block = weight.detach()[_block(values)].to(at_least_float32(weight.dtype))
            _check_digest(new, block, storage["digests"][name])
            state[f"{prefix}.anchor.{new}"] = _grown(block, weight)
    return state


def _split(key: str) -> tuple[str, str, str]:
    """Return the well, the field and the parameter of a key; three empty words for `values`."""
    match = KEY.fullmatch(key.removeprefix(TOP))
    return (match[1], match[2], match[3]) if match else ("", "", "")


def _stored_precision(key: str, tensor: Tensor, precision: PrecisionType) -> dict[str, Tensor]:
    if precision == "8 bits":
        codes, top = encode(tensor)
        return {key: codes, TOP + key: top}
    return {key: tensor.to(torch.bfloat16) if precision == "bfloat16" else tensor}


def _new_names(names: set[str], rename: Rename | None) -> dict[str, str]:
    """Return the name in the model for each name in the file."""
    if rename is None:
        return {name: name for name in names}
    if isinstance(rename, Mapping):
        for name in rename.keys() - names:
            raise ValueError(
                f"rename has {name!r}, which is not in the file; {_closest(name, names)}"
            )
        new = {name: rename.get(name, name) for name in names}
    else:
        new = {name: rename(name) for name in names}
    if len(set(new.values())) < len(new):
        raise ValueError("rename gives two parameters the same name")
    return new


def _weight_like(name: str, values: Tensor, weights: Mapping[str, Tensor], grow: bool) -> Tensor:
    """Return the weight of this name; raise if it is missing or has another shape."""
    if name not in weights:
        raise ValueError(
            f"the file protects {name!r}, which the model has not, or which is not selected; "
            f"{_closest(name, weights)}. If it has another name there, use rename="
        )
    old, now = tuple(values.shape), tuple(weights[name].shape)
    if old == now:
        return weights[name]
    larger = len(old) == len(now) and all(a <= b for a, b in zip(old, now, strict=True))
    if not (larger and grow):
        advice = ": if it gained rows or columns at its end, use grow=True" if larger else ""
        raise ValueError(f"{name!r} has shape {old} in the file and {now} in the model{advice}")
    return weights[name]


def _closest(name: str, names: Mapping[str, Any] | set[str]) -> str:
    return "closest: " + ", ".join(get_close_matches(name, names, n=3, cutoff=0.0))


def _block(values: Tensor) -> tuple[slice, ...]:
    """Return the part of a larger tensor where these values belong: the leading block."""
    return tuple(slice(size) for size in values.shape)


def _grown(values: Tensor, weight: Tensor) -> Tensor:
    """Return the values in the shape of a weight, zero where it is larger."""
    if values.shape == weight.shape:
        return values
    grown = values.new_zeros(weight.shape)
    grown[_block(values)] = values
    return grown


def _digest(tensor: Tensor) -> str:
    """Return a digest of the values of a tensor."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(content.tobytes(), digest_size=8).hexdigest()


def _check_is_weight(name: str, anchor: Tensor, weights: Mapping[str, Tensor]) -> None:
    if not torch.equal(anchor, weights[name].detach().to(anchor.dtype)):
        raise ValueError(
            f"anchors=False leaves out anchors that are the model's weights, but {name!r} differs "
            "from its anchor: save before training goes on, and only a single task"
        )


def _check_digest(name: str, block: Tensor, digest: str) -> None:
    if _digest(block) != digest:
        raise ValueError(
            f"the file was saved without anchors, for a model with other weights: {name!r} is not "
            "what it was. Load the checkpoint that the file belongs to, in the same number type"
        )


def _check_values(field: str, name: str, values: Tensor, path: object) -> None:
    good = values.isfinite() & (values >= 0) if field == "precision" else values.isfinite()
    if not bool(good.all()):
        raise ValueError(
            f"{path} is damaged: the {field} of {name!r} has NaN, infinite or negative entries"
        )


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)


def _plain_values(metadata: Mapping[str, str], key: str, path: object) -> dict[str, Any]:
    if key not in metadata:
        raise ValueError(f"{path} has no {key}: expected a file that memory.save() wrote")
    try:
        values: dict[str, Any] = json.loads(metadata[key])
    except ValueError as error:
        raise ValueError(f"{path} is damaged: its {key} is not JSON") from error
    return values


def automatic_card(model: object, parameters: int, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Return what is known of a memory without asking: its model, its size, its tasks."""
    name = getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
    return {"model": name, "parameters": parameters, "tasks": list(tasks), "version": __version__}
