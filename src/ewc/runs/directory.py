"""A run directory: all that a run needs to go on, or to be drawn years later.

config.json     every option, with the seed and the versions; written once
metrics.jsonl   one JSON object a line, one line a measurement; only ever appended to
checkpoint.safetensors, previous.safetensors
parts/<name>/   for a run of several networks: a run directory each
figures/
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .checkpoint import load_checkpoint, save_checkpoint, sync_directory, write_synced
from .errors import RunError

Row = dict[str, Any]


def versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("ewc", "torch", "numpy")}
    return {"python": platform.python_version(), **packages}


class RunDirectory:
    """The writing and the reading side of one directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def part(self, name: str) -> "RunDirectory":
        """The directory of one network of this run."""
        return RunDirectory(self.path / "parts" / name)

    def parts(self) -> list["RunDirectory"]:
        return [RunDirectory(file.parent) for file in sorted(self.path.glob("parts/*/config.json"))]

    def start(self, config: dict[str, Any], *, resume: bool = False) -> None:
        """Make the directory and write its config, or check that it is the same run's."""
        config = json.loads(json.dumps(config))
        if (self.path / "config.json").exists():
            if not resume:
                raise RunError(f"{self.path} exists: go on with --resume, or choose another --out")
            self._check_same(config)
            return
        if self.path.exists() and any(self.path.iterdir()) and not resume:
            raise RunError(f"{self.path} is not empty and holds no run: choose another --out")
        self.path.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**config, "versions": versions()}, indent=2) + "\n"
        with writing_to(self.path):
            write_synced(self.path / "config.new", content.encode())
        os.replace(self.path / "config.new", self.path / "config.json")
        sync_directory(self.path)

    def _check_same(self, config: dict[str, Any]) -> None:
        stored = self.config()
        for key in config.keys() | stored.keys() - {"versions"}:
            if config.get(key) != stored.get(key):
                raise RunError(
                    f"{self.path} was started with {key} = {stored.get(key)}, "
                    f"not {config.get(key)}: resume with its own options, or choose another --out"
                )

    def config(self) -> dict[str, Any]:
        """The options the run was started with."""
        try:
            config: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a run directory: it has no config.json") from None
        except json.JSONDecodeError as error:
            raise RunError(f"{self.path}/config.json is damaged: {error}") from None
        return config

    def rows(self) -> list[Row]:
        """The measurements so far; a line that is only half written is left out."""
        if not self._metrics.exists():
            return []
        lines = self._metrics.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def append(self, row: Row) -> None:
        """Add a measurement, readable at once."""
        with writing_to(self.path), open(self._metrics, "ab") as file:
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")

    def save(self, state: dict[str, Any], *, finished: bool = False) -> None:
        """Checkpoint a state together with the length of the metrics that belong to it."""
        self._metrics.touch()
        with writing_to(self.path), open(self._metrics, "rb") as file:
            os.fsync(file.fileno())
        length = self._metrics.stat().st_size
        checkpoint = {"state": state, "metrics_bytes": length, "finished": finished}
        save_checkpoint(self.path, checkpoint)

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint's state; measurements made after it are cut off, to be made again."""
        checkpoint = load_checkpoint(self.path)
        if self._metrics.exists():
            os.truncate(self._metrics, checkpoint["metrics_bytes"] if checkpoint else 0)
        return checkpoint["state"] if checkpoint else None

    def finished(self) -> bool:
        checkpoint = load_checkpoint(self.path)
        return checkpoint is not None and checkpoint["finished"]

    def remove(self, patterns: Iterable[str]) -> None:
        """Remove the files in the directory that match."""
        for pattern in patterns:
            for file in self.path.glob(pattern):
                file.unlink()

    @contextmanager
    def locked(self, patience_seconds: float = 10.0) -> Iterator[None]:
        """Hold the directory for this process alone; the lock ends with the process."""
        with open(self.path / "lock", "w") as file:
            deadline = time.monotonic() + patience_seconds
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise RunError(f"{self.path} is being written by another process") from None
                    time.sleep(0.1)
            yield


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn a failed write into one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write to {path} ({error.strerror}); the last checkpoint is intact: "
            "make room and go on with --resume"
        ) from error
