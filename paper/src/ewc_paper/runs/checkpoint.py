"""Checkpoints: tensors and plain values in one safetensors file, written completely or not at all.

The tensors are the file's tensors; all else is JSON in its header, with a checksum over both. A
new checkpoint is written as `new`, synced, and renamed to `checkpoint`; the one before it is kept
as `previous`. An intact file is given up only once a newer one is intact. So whenever the process
dies, and whatever was damaged before, there is an intact checkpoint to continue from.
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

from ewc_paper.errors import Damaged, RunError
from ewc_paper.runs.files import sync_directory, write_synced

NEW, CURRENT, PREVIOUS = "new.safetensors", "checkpoint.safetensors", "previous.safetensors"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint into the directory; if that fails, the last one is left as it is."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_take_tensors(state, "", tensors))
    content = to_bytes(tensors, {"state": text, "sha256": _checksum(text, tensors)})
    new = directory / NEW
    complete_save(directory)
    try:
        write_synced(new, content)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise RunError(
            f"cannot write a checkpoint of {len(content) / 1e6:.1f} MB to {directory} "
            f"({error.strerror}); the last one is intact: free disk space and continue with "
            "--resume"
        ) from error
    _replace_current(directory)


def complete_save(directory: Path) -> None:
    """Complete a save that was killed before its renames: `new` may be the only intact one."""
    if _read(directory / NEW) is not None:
        _replace_current(directory)


def _replace_current(directory: Path) -> None:
    """Make `new` the checkpoint; a damaged checkpoint never becomes `previous`."""
    if _read(directory / CURRENT) is not None:
        os.replace(directory / CURRENT, directory / PREVIOUS)
    os.replace(directory / NEW, directory / CURRENT)
    sync_directory(directory)


def load_checkpoint(directory: Path) -> dict[str, Any] | None:
    """Return the last intact checkpoint, or None if none was ever written."""
    files = [file for name in (NEW, CURRENT, PREVIOUS) if (file := directory / name).exists()]
    for file in files:
        state = _read(file)
        if state is not None:
            return state
    if any(file.name != NEW for file in files):
        raise Damaged(
            f"every checkpoint in {directory} is damaged: remove that directory and start again"
        )
    return None


def says_finished(directory: Path) -> bool:
    """Whether the checkpoint says that the run has ended; reads its header alone, unchecked.

    A save that was killed before its renames does not count until it is completed.
    """
    if not (directory / CURRENT).is_file():  # a pipe would be waited for
        return False
    try:
        with safe_open(directory / CURRENT, framework="pt") as opened:
            return bool(json.loads((opened.metadata() or {}).get("state", "{}")).get("finished"))
    except (SafetensorError, OSError, ValueError, RecursionError):
        return False


def _read(file: Path) -> dict[str, Any] | None:
    """Return the state in a file, or None if the file is missing, truncated or altered."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name).clone() for name in opened.offset_keys()}
        text = header.get("state", "")
        if header.get("sha256") != _checksum(text, tensors):
            return None
        state: dict[str, Any] = _restore_tensors(json.loads(text), tensors)
    except (SafetensorError, FileNotFoundError, ValueError, LookupError, RecursionError):
        return None  # FileNotFoundError: a running process has just renamed it
    return state


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _take_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return the value with each tensor moved to `tensors` and a reference in its place."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        return {key: _take_tensors(item, f"{path}/{key}", tensors) for key, item in value.items()}
    return value


def _restore_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `_take_tensors`."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        return tensors[value["tensor"]]
    return {key: _restore_tensors(item, tensors) for key, item in value.items()}
