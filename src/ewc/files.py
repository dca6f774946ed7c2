"""Files of tensors with a few words beside them: safetensors, which never runs anybody's code.

A file is written beside its place, synced and renamed, so that a crash leaves the old file or the
new one, and nothing in between.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FILE_KIND = "ewc-memory"  # under the key "kind" of a file's metadata


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata to a file, all of it or nothing."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(dict(tensors), beside, metadata={"kind": FILE_KIND, **metadata})
        _sync(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync(path.parent)  # the new name survives a crash too


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a file; raise if it is not one of ours."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"expected a file of an EWC memory, but there is none at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != FILE_KIND:
                raise ValueError(
                    f"expected a file that memory.save() wrote, but {path} is another safetensors "
                    "file; a Fisher of single tensors goes to memory.consolidate(load_file(path))"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
