"""Checkpoints: tensors and plain values in one safetensors file that is never half there.

The tensors are the file's tensors; the rest is JSON in its header, beside a checksum over both. A
new checkpoint is written beside the old one, synced, and renamed into place; the one before it is
kept as `previous`. Whenever the process dies, at least one of the two is whole.
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

from .errors import RunError

NEW, CURRENT, PREVIOUS = "new.safetensors", "checkpoint.safetensors", "previous.safetensors"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint into the directory; if that fails, the last one stays as it is."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_take_tensors(state, "", tensors))
    content = to_bytes(tensors, {"state": text, "sha256": _checksum(text, tensors)})
    new = directory / NEW
    try:
        write_synced(new, content)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise RunError(
            f"cannot write a checkpoint of {len(content) / 1e6:.1f} MB to {directory} "
            f"({error.strerror}); the last one is intact: make room and go on with --resume"
        ) from error
    if (directory / CURRENT).exists():
        os.replace(directory / CURRENT, directory / PREVIOUS)
    os.replace(new, directory / CURRENT)
    sync_directory(directory)


def load_checkpoint(directory: Path) -> dict[str, Any] | None:
    """The last checkpoint that is whole, or None if none was ever written."""
    files = [file for name in (CURRENT, PREVIOUS) if (file := directory / name).exists()]
    for file in files:
        state = _read(file)
        if state is not None:
            return state
    if files:
        raise RunError(
            f"every checkpoint in {directory} is damaged: remove that directory and start anew"
        )
    return None


def write_synced(file: Path, content: bytes) -> None:
    with open(file, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def sync_directory(directory: Path) -> None:
    """Make renames in a directory outlive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(file: Path) -> dict[str, Any] | None:
    """The state in a file, or None if the file was cut short or altered."""
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name).clone() for name in opened.offset_keys()}
    except SafetensorError:
        return None
    text = header.get("state", "")
    if header.get("sha256") != _checksum(text, tensors):
        return None
    state: dict[str, Any] = _put_tensors(json.loads(text), tensors)
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
