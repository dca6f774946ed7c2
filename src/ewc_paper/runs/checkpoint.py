"""Checkpoints: tensors and plain values in one safetensors file that is never half there.

The tensors are the file's tensors; the rest is JSON in its header, beside a checksum over both. A
new checkpoint is written as `new`, synced, and renamed to `checkpoint`; the one before it is kept
as `previous`. A whole file is only ever given up once a newer one is whole, so that whenever the
process dies, whatever was damaged before, there is a whole checkpoint to go on from.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from ewc_paper.errors import RunError
from ewc_paper.runs.files import sync_directory, write_synced

NEW, CURRENT, PREVIOUS = "new.safetensors", "checkpoint.safetensors", "previous.safetensors"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint into the directory; if that fails, the last one stays as it is."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_take_tensors(state, "", tensors))
    content = to_bytes(tensors, {"state": text, "sha256": _checksum(text, tensors)})
    new = directory / NEW
    if _read(new) is not None:  # of a save that was killed: it may be the only whole one
        _put_in_place(directory)
    try:
        write_synced(new, content)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise RunError(
            f"cannot write a checkpoint of {len(content) / 1e6:.1f} MB to {directory} "
            f"({error.strerror}); the last one is intact: make room and go on with --resume"
        ) from error
    _put_in_place(directory)


def _put_in_place(directory: Path) -> None:
    """Let `new` be the checkpoint; a damaged one is dropped and never becomes `previous`."""
    if _read(directory / CURRENT) is not None:
        os.replace(directory / CURRENT, directory / PREVIOUS)
    os.replace(directory / NEW, directory / CURRENT)
    sync_directory(directory)


def load_checkpoint(directory: Path) -> dict[str, Any] | None:
    """The last checkpoint that is whole, or None if none was ever written."""
    files = [file for name in (NEW, CURRENT, PREVIOUS) if (file := directory / name).exists()]
    for file in files:
        state = _read(file)
        if state is not None:
            return state
    if any(file.name != NEW for file in files):
        raise RunError(
            f"every checkpoint in {directory} is damaged: remove that directory and start anew"
        )
    return None


def _read(file: Path) -> dict[str, Any] | None:
    """The state in a file, or None if the file is missing, was cut short or altered."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name).clone() for name in opened.offset_keys()}
        text = header.get("state", "")
        if header.get("sha256") != _checksum(text, tensors):
            return None
        state: dict[str, Any] = _put_tensors(json.loads(text), tensors)
    except (SafetensorError, FileNotFoundError, ValueError, LookupError, RecursionError):
        return None  # FileNotFoundError: a run that goes on has just renamed it
    return state


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _take_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The value with each tensor moved to `tensors` and a reference in its place."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        return {key: _take_tensors(item, f"{path}/{key}", tensors) for key, item in value.items()}
    return value


def _put_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        return tensors[value["tensor"]]
    return {key: _put_tensors(item, tensors) for key, item in value.items()}
